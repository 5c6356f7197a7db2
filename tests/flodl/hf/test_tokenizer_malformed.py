"""Files with something wrong in them give an error that names them, or a tokenizer that works."""

from __future__ import annotations

import json
import random

import pytest
import torch

from flodl.errors import FlodlError
from flodl.hf.errors import CheckpointFormatError
from flodl.hf.tokenizer import PreTrainedTokenizerFast
from tests.flodl.hf.batches import encoded
from tests.flodl.hf.tokenizer_material import (
    LINES,
    albert_file,
    deberta_file,
    write_bert,
    write_roberta,
    write_unigram,
    xlm_roberta_file,
)

KINDS = {
    "bert": ("vocab.txt", "tokenizer_config.json"),
    "roberta": ("vocab.json", "merges.txt", "tokenizer_config.json"),
    "albert": ("spiece.model",),
    "xlm": ("sentencepiece.bpe.model",),
    "deberta": ("spm.model",),
    "bert-json": ("tokenizer.json",),
    "roberta-json": ("tokenizer.json",),
    "xlm-json": ("tokenizer.json", "special_tokens_map.json"),
}
SETTINGS = {
    "do_lower_case": True,
    "model_max_length": 64,
    "added_tokens_decoder": {"0": {"content": "[PAD]", "special": True}},
}
VALUES = (None, True, -1, 0, 3, 10**30, 1.5, "", "x", "[UNK]", [], {}, [["a", 1.0]], "\ud800")


def write(directory, kind):
    """A directory with a good tokenizer of a kind."""
    family, _, form = kind.partition("-")
    if family == "bert":
        write_bert(directory, SETTINGS)
    elif family == "roberta":
        write_roberta(directory, {"model_max_length": 64, "mask_token": "<mask>"})
    else:
        made = {"albert": albert_file, "xlm": xlm_roberta_file, "deberta": deberta_file}[family]
        write_unigram(directory, KINDS[family][0], made())
    if form:
        PreTrainedTokenizerFast.from_pretrained(directory).save(directory / "tokenizer.json")
        (directory / "special_tokens_map.json").write_text('{"mask_token": "<mask>"}')
    return directory


def mutated(data, chance):
    """Other bytes: some cut out, repeated, turned over, or one JSON value exchanged."""
    ways = [cut_off, cut_out, repeat, turn_bits, put_bytes]
    try:
        value = json.loads(data)
    except ValueError:
        return chance.choice(ways)(data, chance)
    if chance.random() < 0.7:
        return json.dumps(exchanged(value, chance)).encode()
    return chance.choice(ways)(data, chance)


def cut_off(data, chance):
    return data[: chance.randrange(len(data))]


def cut_out(data, chance):
    start = chance.randrange(len(data))
    return data[:start] + data[start + chance.randint(1, 30) :]


def repeat(data, chance):
    start = chance.randrange(len(data))
    return data[: start + chance.randint(1, 90)] + data[start:]


def turn_bits(data, chance):
    changed = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def put_bytes(data, chance):
    start = chance.randrange(len(data))
    return data[:start] + chance.randbytes(chance.randint(1, 9)) + data[start:]


def exchanged(value, chance):
    """The same JSON with one value, wherever it is, replaced or left out."""
    if isinstance(value, dict) and value and chance.random() < 0.92:
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {name: other for name, other in value.items() if name != key}
        return {**value, key: exchanged(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.92:
        index = chance.randrange(len(value))
        if chance.random() < 0.1:
            return value[:index] + value[index + 1 :]
        return [*value[:index], exchanged(value[index], chance), *value[index + 1 :]]
    return chance.choice(VALUES)


def outcome(directory):
    """What reading and using a tokenizer comes to: nothing, or the error."""
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
        batch = encoded(tokenizer, LINES[:12], truncation=True, max_length=40)
        tokenizer.save(directory / "out")
    except (FlodlError, ValueError) as error:
        return error
    assert len(batch.input_ids) == 12
    assert int(batch.input_ids.min()) >= 0
    return None


def is_typed(error, names):
    """Whether an error names a file, or is about a token that the file no longer has."""
    if isinstance(error, FlodlError):
        return isinstance(error, CheckpointFormatError) and any(n in str(error) for n in names)
    return any(part in str(error) for part in ("padding needs a pad token", "leaves no space"))


def outcomes(tmp_path, kind, count, seed):
    directory = write(tmp_path / kind, kind)
    good = {name: (directory / name).read_bytes() for name in KINDS[kind]}
    assert outcome(directory) is None
    chance = random.Random(f"{kind} {seed}")
    found = []
    for _ in range(count):
        name = chance.choice(KINDS[kind])
        (directory / name).write_bytes(mutated(good[name], chance))
        error = outcome(directory)
        assert error is None or is_typed(error, KINDS[kind]), repr(error)
        found.append("fine" if error is None else "named")
        (directory / name).write_bytes(good[name])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_files_are_refused_by_name_or_work(tmp_path, kind):
    found = outcomes(tmp_path, kind, 25, seed=1)
    assert len(found) == 25
    assert "named" in found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_mutated_files_are_refused_by_name_or_work(tmp_path, kind):
    found = outcomes(tmp_path, kind, 250, seed=2)
    assert {"named", "fine"} <= set(found)


def test_a_panic_of_the_library_is_an_error_that_names_the_file(tmp_path):
    made = xlm_roberta_file()
    made.rules = b"\x04\0\0\0abcd"  # a trie that leads outside of itself
    directory = write_unigram(tmp_path / "xlm", "sentencepiece.bpe.model", made)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    with pytest.raises(CheckpointFormatError, match=r"sentencepiece\.bpe\.model cannot encode: "):
        encoded(tokenizer, ["é"])


def test_a_vocabulary_that_cannot_be_written_is_named(tmp_path):
    directory = write(tmp_path / "json", "roberta-json")
    told = json.loads((directory / "tokenizer.json").read_text())
    vocab = told["model"]["vocab"]
    first, second = told["model"]["merges"][0]
    vocab[first + second] = vocab[second]  # two tokens of one id: a copy lacks one of them
    (directory / "tokenizer.json").write_text(json.dumps(told))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    expected = encoded(tokenizer, ["a"]).input_ids
    tokenizer.inner.enable_padding()
    assert torch.equal(encoded(tokenizer, ["a"]).input_ids, expected)
    with pytest.raises(CheckpointFormatError, match=r"tokenizer\.json is not a tok.* out of voc"):
        tokenizer.save(tmp_path / "out")
