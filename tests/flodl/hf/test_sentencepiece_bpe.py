"""SentencePiece models of byte pairs (BPE) give the ids that the package ``sentencepiece`` gives.

``sentencepiece_fixtures`` made the models and the expected ids.
"""

from __future__ import annotations

import json
import struct

import pytest
from tokenizers import normalizers

from flodl.hf.text.pieces import bpe, merges
from flodl.hf.text.sentencepiece import Algorithm, PieceKind, read_sentencepiece
from flodl.hf.tokenizer import HfTokenizer
from tests.flodl.hf import sentencepiece_fixtures as fixtures
from tests.flodl.hf.tokenizer_material import LINES, rows_of, write_unigram
from tests.later import transformers

CONTROLS = ("<unk>", "<s>", "</s>")
"""SentencePiece never reads these in a text; tokenizers of transformers do."""


def made(name):
    """The tokenizer of a model, and the model, without special tokens around texts."""
    model = read_sentencepiece(fixtures.model(name), name)
    pieces = list(model.pieces)
    return bpe(model, pieces, model.unk_id, [], spaced=model.dummy_prefix, where=name), model


def compared(name):
    """Texts with the expected checksum of their ids, without those that spell a control piece."""
    pairs = zip(fixtures.texts(), fixtures.expected(name), strict=True)
    return [(text, sum_) for text, sum_ in pairs if not any(mark in text for mark in CONTROLS)]


@pytest.mark.parametrize("name", ["bytes", "rules", "spaces", "plain"])
def test_five_thousand_texts_have_the_ids_of_sentencepiece(name):
    tokenizer, model = made(name)
    assert model.algorithm is Algorithm.BPE
    assert model.byte_fallback is (name in ("bytes", "spaces"))
    assert model.dummy_prefix is (name != "plain")
    assert model.single_spaces is (name != "spaces")
    pairs = compared(name)
    assert len(pairs) > 4_800
    rows = tokenizer.encode_batch([text for text, _ in pairs])
    wrong = [
        (text, row.tokens)
        for (text, expected), row in zip(pairs, rows, strict=True)
        if fixtures.checksum(row.ids) != expected
    ]
    assert not wrong, f"{len(wrong)}, among them {wrong[:3]}"
    assert len({number for row in rows for number in row.ids}) > 300
    if model.byte_fallback:
        assert not any(model.unk_id in row.ids for row in rows)


def longest_matches(charsmap, text):
    """The rules of a file applied as SentencePiece applies them: the longest match, everywhere."""
    size = struct.unpack_from("<I", charsmap)[0]
    units = struct.unpack_from(f"<{size // 4}I", charsmap, 4)
    values, data = charsmap[4 + size :], text.encode()
    written, position = b"", 0
    while position < len(data):
        node, found = _child(units, 0), None
        for length, byte in enumerate(data[position:], start=1):
            node ^= byte
            unit = units[node]
            if unit & 0x8000_00FF != byte:
                break
            node ^= _offset(unit)
            if unit >> 8 & 1:
                found = (length, units[node] & 0x7FFF_FFFF)
        if found is None:
            length = len(data[position:].decode()[0].encode())
            written += data[position : position + length]
        else:
            length = found[0]
            written += values[found[1] : values.index(b"\0", found[1])]
        position += length
    return written.decode()


def _offset(unit):
    return (unit >> 10) << ((unit & 1 << 9) >> 6)


def _child(units, node):
    return node ^ _offset(units[node])


def test_the_rules_of_a_usual_file_differ_only_in_clusters_of_characters():
    """The package tokenizers looks up whole clusters, and takes the shortest rule that begins one.

    With the longest rules applied before, all ids are those of SentencePiece.
    """
    tokenizer, model = made("nmt")
    pairs = compared("nmt")
    rows = tokenizer.encode_batch([text for text, _ in pairs])
    wrong = [
        (text, expected)
        for (text, expected), row in zip(pairs, rows, strict=True)
        if fixtures.checksum(row.ids) != expected
    ]
    assert 0 < len(wrong) < 10
    steps = list(tokenizer.normalizer)
    assert isinstance(steps[0], normalizers.Precompiled)
    tokenizer.normalizer = normalizers.Sequence(steps[1:])
    for text, expected in [*wrong, *pairs[:100]]:
        row = tokenizer.encode(longest_matches(model.charsmap, text))
        assert fixtures.checksum(row.ids) == expected, text


def test_every_way_to_divide_a_piece_is_a_merge():
    pieces = [("a", 0.0), ("b", 0.0), ("ab", -2.0), ("aba", -1.0), ("ba", -3.0), ("abab", -9.0)]
    found = merges(pieces, {"a", "b", "ab", "aba", "ba"})
    assert found == [("a", "ba"), ("ab", "a"), ("a", "b"), ("b", "a")]


FILES = {
    "albert": ("spiece.model", {"keep_accents": True, "do_lower_case": False}),
    "xlm": ("sentencepiece.bpe.model", {}),
    "deberta": ("spm.model", {}),
}


@pytest.mark.parametrize("family", FILES)
@pytest.mark.parametrize("name", ["bytes", "plain"])
def test_every_family_reads_byte_pairs(tmp_path, family, name):
    file, settings = FILES[family]
    (tmp_path / family).mkdir()
    (tmp_path / family / file).write_bytes(fixtures.model(name))
    (tmp_path / family / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = HfTokenizer.from_pretrained(tmp_path / family)
    alone, model = made(name)
    # XLM-RoBERTa has four special tokens in the place of three pieces.
    shift = int(family == "xlm")
    for line in LINES[:60]:
        if any(odd in line for odd in ("``", "  ", "▁")) or line != line.strip():
            continue
        expected = [
            3 if shift and number == model.unk_id else number + shift
            for number in alone.encode(line).ids
        ]
        ids = tokenizer(line, add_special_tokens=False).input_ids
        assert ids == expected, line
        if name == "bytes":
            assert tokenizer.decode(ids) == line
    (tmp_path / "out").mkdir()
    tokenizer.save(tmp_path / "out" / "tokenizer.json")
    (tmp_path / "out" / "tokenizer_config.json").write_text("{}")
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert rows_of(tokenizer.encode(LINES)) == reference(LINES)["input_ids"]


def test_symbols_that_the_file_reserves_are_never_split(tmp_path):
    from tests.flodl.hf.tokenizer_material import Pieces

    pieces = [("<pad>", 0.0, 3), ("<unk>", 0.0, 2), ("[CLS]", 0.0, 3), ("[SEP]", 0.0, 3)]
    pieces += [("[MASK]", 0.0, 3), ("<ent>", 0.0, 4)]
    pieces += [(letter, -9.0, 1) for letter in "▁ent<>a"] + [("en", -1.0, 1), ("aa", -2.0, 5)]
    made = Pieces(pieces, unk_id=1, algorithm=2)
    directory = write_unigram(tmp_path / "albert", "spiece.model", made)
    tokenizer = HfTokenizer.from_pretrained(directory)
    assert tokenizer.tokenize("ent<ent>aa") == ["▁", "en", "t", "<ent>", "▁", "a", "a"]
    assert read_sentencepiece(made.to_bytes(), "x").kinds[5] is PieceKind.USER_DEFINED


def test_spaces_at_the_end_of_pieces_are_refused():
    from flodl.hf.errors import CheckpointFormatError

    data = fixtures.model("plain") + b"\x12\x05\x18\x02\xc0\x01\x01"
    with pytest.raises(CheckpointFormatError, match="have their spaces at the end"):
        read_sentencepiece(data, "x")
