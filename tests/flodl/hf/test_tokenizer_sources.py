"""Tokenizers made from vocabulary files give the ids that the reference gives."""

from __future__ import annotations

import json
import types

import pytest

from flodl.hf.errors import CheckpointFormatError, TokenizerMissingError
from flodl.hf.tokenizer import PreTrainedTokenizerFast
from tests.flodl.hf.batches import encoded, token_fact
from tests.flodl.hf.tokenizer_material import (
    LINES,
    Pieces,
    albert_file,
    deberta_file,
    rows_of,
    unigram_pieces,
    write_bert,
    write_roberta,
    write_unigram,
    xlm_roberta_file,
)
from tests.later import convert_slow_tokenizer, transformers
from tests.rows import each_row

NUMBERED = frozenset({"4,", "▁1,", "3,"})
"""Pieces of a digit and a comma that ``albert_file`` holds."""

PAIRS = list(zip(LINES[:100], LINES[100:200], strict=True))


def converted(converter, tokenizer, path, **settings):
    """What the reference's converter makes of a SentencePiece file."""
    slow = types.SimpleNamespace(
        vocab_file=str(path),
        add_prefix_space=True,
        convert_tokens_to_ids=tokenizer.inner.token_to_id,
        **settings,
    )
    return getattr(convert_slow_tokenizer, converter)(slow).converted()


def assert_equal_to(tokenizer, reference, lines=LINES):
    """Same ids for lines and pairs, by a tokenizer of the ``tokenizers`` package."""
    assert len(lines) > 350
    assert rows_of(encoded(tokenizer, lines)) == [e.ids for e in reference.encode_batch(lines)]
    known = set(lines)
    pairs = [pair for pair in PAIRS if known.issuperset(pair)]
    assert rows_of(encoded(tokenizer, pairs)) == [e.ids for e in reference.encode_batch(pairs)]


@pytest.mark.case("hf", 35)
@pytest.mark.parametrize(
    "settings",
    [
        None,
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
    ],
    ids=["plain", "cased", "accents", "chinese"],
)
def test_a_word_piece_vocabulary_gives_the_ids_of_the_reference(tmp_path, settings):
    told = settings or {}
    directory = write_bert(
        tmp_path / "bert",
        settings,
        lowercase=told.get("do_lower_case", True),
        strip_accents=told.get("strip_accents"),
        chinese=told.get("tokenize_chinese_chars", True),
    )
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    reference = transformers.BertTokenizer.from_pretrained(directory)
    expected = reference(LINES)
    batch = encoded(tokenizer, LINES)
    assert rows_of(batch) == expected["input_ids"]
    assert len(LINES) == 500
    pairs = reference([a for a, _ in PAIRS], [b for _, b in PAIRS], padding=True)
    assert encoded(tokenizer, PAIRS).input_ids.tolist() == pairs["input_ids"]
    assert encoded(tokenizer, PAIRS).token_type_ids.tolist() == pairs["token_type_ids"]
    assert encoded(tokenizer, PAIRS).attention_mask.tolist() == pairs["attention_mask"]


@pytest.mark.case("hf", 35)
@pytest.mark.parametrize("settings", [None, {"add_prefix_space": True}], ids=["plain", "space"])
def test_byte_pairs_give_the_ids_of_the_reference_and_pad_with_1(tmp_path, settings):
    directory = write_roberta(tmp_path / "roberta", settings)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    reference = transformers.RobertaTokenizer.from_pretrained(directory)
    padded = reference(LINES, padding=True, return_offsets_mapping=True)
    batch = encoded(tokenizer, LINES)
    assert batch.input_ids.tolist() == padded["input_ids"]
    assert batch.attention_mask.tolist() == padded["attention_mask"]
    offsets = token_fact(batch, "offsets").tolist()
    assert [[tuple(one) for one in row] for row in offsets] == padded["offset_mapping"]
    assert set(batch.input_ids[batch.attention_mask == 0].tolist()) == {1}
    assert tokenizer.pad_id == 1
    pairs = reference([a for a, _ in PAIRS], [b for _, b in PAIRS], padding=True)
    assert encoded(tokenizer, PAIRS).input_ids.tolist() == pairs["input_ids"]


@pytest.mark.case("hf", 35)
def test_an_xlm_roberta_file_gives_the_ids_of_the_reference(tmp_path):
    made = xlm_roberta_file()
    directory = write_unigram(tmp_path / "xlm", "sentencepiece.bpe.model", made)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    path = directory / "sentencepiece.bpe.model"
    # The older converter splits less where the mark for spaces itself is in a text.
    unmarked = [line for line in LINES if "▁" not in line]
    assert_equal_to(tokenizer, converted("XLMRobertaConverter", tokenizer, path), unmarked)
    first = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    learnt = [(text, score) for text, score, _ in made.pieces[3:]]
    newer = transformers.XLMRobertaTokenizer(
        vocab=[*first, *learnt, ("<mask>", 0.0)], _spm_precompiled_charsmap=made.rules
    )
    assert rows_of(encoded(tokenizer, LINES)) == newer(LINES)["input_ids"]
    assert encoded(tokenizer, [""]).input_ids.tolist() == [[0, 2]]
    assert tokenizer.pad_id == 1
    assert tokenizer.mask_token_id == len(made.pieces) + 1
    assert not encoded(tokenizer, PAIRS).token_type_ids.any()


@pytest.mark.case("hf", 35)
@pytest.mark.parametrize("cased", [False, True])
def test_an_albert_file_gives_the_ids_of_the_reference(tmp_path, cased):
    made = albert_file()
    settings = {"do_lower_case": not cased, "keep_accents": cased}
    directory = write_unigram(tmp_path / "albert", "spiece.model", made, settings)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    newer = transformers.AlbertTokenizer(
        vocab=[(text, score) for text, score, _ in made.pieces],
        _spm_precompiled_charsmap=made.rules,
        additional_special_tokens=["("],
        **settings,
    )
    ids = rows_of(encoded(tokenizer, LINES))
    assert ids == newer(LINES)["input_ids"]
    commas = {index for index, (text, _, _) in enumerate(made.pieces) if text in NUMBERED}
    assert commas & {number for row in ids for number in row}
    # The older converter splits otherwise at ends, at the mark for spaces, at reserved symbols, and
    # between a digit and a comma.
    older = converted("AlbertConverter", tokenizer, directory / "spiece.model", **settings)
    settled = [
        line
        for line, row in zip(LINES, ids, strict=True)
        if line == line.strip() and not set("(▁") & set(line) and not commas & set(row)
    ]
    assert_equal_to(tokenizer, older, settled)
    assert (tokenizer.pad_id, tokenizer.cls_token_id, tokenizer.mask_token_id) == (0, 2, 4)


@pytest.mark.case("hf", 35)
@pytest.mark.parametrize(
    "settings",
    [None, {"do_lower_case": True}, {"split_by_punct": True}],
    ids=["plain", "lower", "punctuation"],
)
def test_a_deberta_file_gives_the_ids_of_the_reference(tmp_path, settings):
    made = deberta_file()
    directory = write_unigram(tmp_path / "deberta", "spm.model", made, settings)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    told = {"do_lower_case": False, "split_by_punct": False, **(settings or {})}
    older = converted("DebertaV2Converter", tokenizer, directory / "spm.model", **told)
    assert_equal_to(tokenizer, older)
    assert tokenizer.mask_token_id == len(made.pieces)
    assert (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.unk_token_id) == (1, 2, 3)


@pytest.mark.case("hf", 35)
@each_row("kind", ["bert", "roberta", "albert", "xlm", "deberta", "json"])
def test_saving_writes_the_very_bytes_that_were_read(tmp_path, kind):
    directory = written(tmp_path / kind, kind)
    (directory / "special_tokens_map.json").write_text('{ "mask_token" : null }\r\n')
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    encoded(tokenizer, LINES[:5], truncation=True, max_length=8)
    tokenizer.save(tmp_path / "out" / "deep")
    copied = {path.name: path.read_bytes() for path in (tmp_path / "out" / "deep").iterdir()}
    assert copied == {path.name: path.read_bytes() for path in directory.iterdir()}


def written(directory, kind):
    """A directory with a tokenizer of one kind."""
    settings = {"model_max_length": 64}
    if kind == "bert":
        return write_bert(directory, settings)
    if kind == "roberta":
        return write_roberta(directory, settings)
    if kind == "albert":
        return write_unigram(directory, "spiece.model", albert_file(), settings)
    if kind == "xlm":
        name = "sentencepiece.bpe.model"
        return write_unigram(directory, name, xlm_roberta_file(), settings)
    if kind == "deberta":
        return write_unigram(directory, "spm.model", deberta_file(), settings)
    write_bert(directory, settings)
    whole = PreTrainedTokenizerFast.from_pretrained(directory).inner
    whole.enable_padding(pad_id=3, pad_token="[SEP]")
    whole.enable_truncation(7)
    whole.save(str(directory / "tokenizer.json"), pretty=False)
    (directory / "vocab.txt").unlink()
    return directory


@pytest.mark.case("hf", 35)
@pytest.mark.parametrize("kind", ["bert", "roberta", "albert", "xlm", "deberta"])
def test_the_one_file_form_loads_in_the_reference(tmp_path, kind):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(written(tmp_path / kind, kind))
    (tmp_path / "out").mkdir()
    tokenizer.save(tmp_path / "out" / "tokenizer.json")
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert rows_of(encoded(tokenizer, LINES)) == reference(LINES)["input_ids"]
    again = PreTrainedTokenizerFast.from_file(tmp_path / "out" / "tokenizer.json")
    assert rows_of(encoded(again, LINES)) == rows_of(encoded(tokenizer, LINES))
    assert again.mask_token_id == tokenizer.mask_token_id


def test_tokenizer_json_comes_before_every_vocabulary(tmp_path):
    directory = written(tmp_path / "json", "json")
    (directory / "vocab.txt").write_text("[UNK]\n")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    assert tokenizer.inner.get_vocab_size() == 600
    assert tokenizer.files.source == ("tokenizer.json",)


@each_row("name", ["vocab.txt", "spm.model", "merges.txt"])
def test_a_file_given_by_name_is_read_as_its_kind(tmp_path, name):
    kind = {"vocab.txt": "bert", "spm.model": "deberta", "merges.txt": "roberta"}[name]
    directory = written(tmp_path / kind, kind)
    tokenizer = PreTrainedTokenizerFast.from_file(directory / name)
    expected = encoded(PreTrainedTokenizerFast.from_pretrained(directory), LINES[:9])
    assert encoded(tokenizer, LINES[:9]).input_ids.tolist() == expected.input_ids.tolist()


def test_a_directory_without_a_tokenizer_says_what_was_looked_for(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(TokenizerMissingError, match=r"tokenizer\.json, vocab\.txt, .*spm\.model"):
        PreTrainedTokenizerFast.from_pretrained(tmp_path)
    with pytest.raises(TokenizerMissingError, match=r"looked for vocab\.json with merges\.txt"):
        PreTrainedTokenizerFast.from_file(tmp_path / "vocab.json")
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        PreTrainedTokenizerFast.from_file(tmp_path / "nothing.json")


def test_tokens_added_later_keep_their_ids(tmp_path):
    settings = {
        "added_tokens_decoder": {
            "600": {"content": "<ent>", "lstrip": True, "special": True},
            "0": {"content": "[PAD]", "special": True},
        }
    }
    directory = write_bert(tmp_path / "bert", settings)
    (directory / "added_tokens.json").write_text('{"<date>": 601}')
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    assert tokenizer.inner.encode("a <ent>b<date>").tokens[-3:-1] == ["b", "<date>"]
    assert tokenizer.inner.token_to_id("<ent>") == 600
    assert tokenizer.inner.token_to_id("<date>") == 601
    (directory / "added_tokens.json").write_text('{"<date>": 700}')
    with pytest.raises(CheckpointFormatError, match=r"'<date>' must have the id 700, but comes"):
        PreTrainedTokenizerFast.from_pretrained(directory)


def test_special_tokens_named_by_the_files_replace_the_usual_ones(tmp_path):
    settings = {"mask_token": {"content": "e", "lstrip": False}, "sep_token": "[UNK]"}
    directory = write_roberta(tmp_path / "roberta", settings)
    settings["sep_token"] = "<unk>"
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    assert tokenizer.mask_token == "e"
    assert tokenizer.sep_token_id == 3
    assert encoded(tokenizer, ["x"]).input_ids.tolist()[0][-1] == 3


def test_the_mask_of_roberta_takes_the_space_before_it(tmp_path):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(write_roberta(tmp_path / "roberta"))
    spaced, close = rows_of(encoded(tokenizer, ["Der <mask>.", "Der<mask>."]))
    assert spaced == close
    assert spaced.count(tokenizer.mask_token_id) == 1


BROKEN = [
    ("bert", "vocab.txt", b"[PAD]\nhello\n", r"vocab\.txt has no line '\[UNK\]'"),
    ("bert", "vocab.txt", b"[UNK]\n\xff\xfe", r"vocab\.txt is not UTF-8 text \(byte 6\)"),
    ("bert", "tokenizer_config.json", b"[1]", r"tokenizer_config\.json must hold a JSON object"),
    ("bert", "tokenizer_config.json", b'{"do_lower_case": 1}', "do_lower_case must be true or"),
    ("bert", "tokenizer_config.json", b'{"model_max_length": "x"}', "must be a positive number"),
    ("bert", "tokenizer_config.json", b'{"pad_token": 3}', "pad_token must be text or an object"),
    ("bert", "tokenizer_config.json", b'{"added_tokens_decoder": 3}', "must be an object"),
    ("bert", "tokenizer_config.json", b'{"added_tokens_decoder": {"x": "a"}}', "the key 'x'"),
    ("bert", "added_tokens.json", b'{"a": "b"}', r"added_tokens\.json: 'a' has the id 'b'"),
    ("bert", "special_tokens_map.json", b"{", r"special_tokens_map\.json is not JSON"),
    ("roberta", "vocab.json", b'{"a": 1.5}', r"vocab\.json: 'a' has the id 1\.5, not a number"),
    ("roberta", "vocab.json", b'{"a": 0, "b": 0}', "'a' and 'b' both have the id 0"),
    ("roberta", "vocab.json", b'{"a": 0}', r"merges\.txt with vocab\.json is not a tokenizer"),
    ("roberta", "merges.txt", b"#version\na b\nabc\n", r"merges\.txt, line 3: 'abc' is not two"),
    (
        "albert",
        "spiece.model",
        b"",
        r"spiece\.model is not a unigram model: it holds no pieces",
    ),
    ("json", "tokenizer.json", b"{}", r"tokenizer\.json is not a tokenizer"),
    ("json", "tokenizer.json", b"\xff", r"tokenizer\.json is not UTF-8 text"),
]


@each_row(("kind", "name", "content", "message"), BROKEN)
def test_a_broken_file_is_named(tmp_path, kind, name, content, message):
    directory = written(tmp_path / kind, kind)
    (directory / name).write_bytes(content)
    with pytest.raises(CheckpointFormatError, match=message):
        PreTrainedTokenizerFast.from_pretrained(directory)


def test_an_xlm_roberta_file_that_begins_with_text_is_refused(tmp_path):
    pieces = unigram_pieces((("<unk>", 2),))
    directory = write_unigram(tmp_path / "x", "sentencepiece.bpe.model", Pieces(pieces))
    with pytest.raises(CheckpointFormatError, match="does not begin with the three special"):
        PreTrainedTokenizerFast.from_pretrained(directory)


FROM_HUB = """
import json, sys
from flodl.hf.tokenizer import PreTrainedTokenizerFast
for access in json.loads(sys.argv[1]):
    tokenizer = PreTrainedTokenizerFast.from_pretrained("owner/tok", **access)
    print(tokenizer, [tokenizer.encode("a b")])
"""


def test_a_repository_is_read_of_the_revision_that_is_asked_for(hub, tmp_path):
    lines = ["[UNK]", "[CLS]", "[SEP]", "a", "b", "[PAD]", "[MASK]"]
    for name, order in (("main", lines), ("old", lines[::-1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").write_text("\n".join(order))
    hub.add_repo("owner/tok", tmp_path / "main", {"old": tmp_path / "old"})
    accesses = [{}, {"revision": "old"}, {"local_files_only": True}]
    done = hub.python(FROM_HUB, tmp_path, json.dumps(accesses))
    assert done.stdout.splitlines() == [
        "PreTrainedTokenizerFast(owner/tok, 7 tokens, limit None) [[1, 3, 4, 2]]",
        "PreTrainedTokenizerFast(owner/tok, 7 tokens, limit None) [[5, 3, 2, 4]]",
        "PreTrainedTokenizerFast(owner/tok, 7 tokens, limit None) [[1, 3, 4, 2]]",
    ]
    assert sum(path.endswith("vocab.txt") for path in hub.bodies()) == 2


def saved_by_the_reference(directory, kind):
    """A tokenizer as the reference itself saves it, and the directory."""
    if kind == "bert":
        made = transformers.BertTokenizer.from_pretrained(write_bert(directory))
    elif kind == "roberta":
        made = transformers.RobertaTokenizer.from_pretrained(write_roberta(directory))
    else:
        file = {"albert": albert_file, "xlm": xlm_roberta_file, "deberta": deberta_file}[kind]()
        pieces = [(text, score) for text, score, _ in file.pieces]
        if kind == "deberta":
            made = transformers.DebertaV2Tokenizer(vocab=pieces)
        elif kind == "albert":
            made = transformers.AlbertTokenizer(vocab=pieces, _spm_precompiled_charsmap=file.rules)
        else:
            first = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
            vocab = [*first, *pieces[3:], ("<mask>", 0.0)]
            made = transformers.XLMRobertaTokenizer(
                vocab=vocab, _spm_precompiled_charsmap=file.rules
            )
    made.save_pretrained(directory / "saved")
    return made, directory / "saved"


@pytest.mark.parametrize("kind", ["bert", "roberta", "albert", "xlm", "deberta"])
def test_what_the_reference_saves_is_read_as_the_reference_reads_it(tmp_path, kind):
    reference, directory = saved_by_the_reference(tmp_path, kind)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    padded = reference(LINES, padding=True, return_offsets_mapping=True)
    batch = encoded(tokenizer, LINES)
    assert batch.input_ids.tolist() == padded["input_ids"]
    assert batch.attention_mask.tolist() == padded["attention_mask"]
    offsets = token_fact(batch, "offsets").tolist()
    assert [[tuple(one) for one in row] for row in offsets] == padded["offset_mapping"]
    names = ("pad_token", "mask_token", "cls_token", "sep_token", "unk_token")
    for name in names:
        assert getattr(tokenizer, name) == getattr(reference, name)
    assert tokenizer.pad_id == reference.pad_token_id
    assert tokenizer.mask_token_id == reference.mask_token_id
    cut = reference(LINES, padding=True, truncation=True, max_length=16)
    made = encoded(tokenizer, LINES, truncation=True, max_length=16)
    assert made.input_ids.tolist() == cut["input_ids"]
