from __future__ import annotations

import struct

import pytest
from hypothesis import given, strategies as st

from flodl.hf.errors import CheckpointFormatError
from flodl.hf.text.sentencepiece import PieceKind, read_sentencepiece
from tests.flodl.hf.tokenizer_material import Pieces, albert_file, deberta_file, xlm_roberta_file
from tests.later import sentencepiece_model
from tests.rows import each_row

UNKNOWN = ("<unk>", 0.0, 2)


@pytest.mark.parametrize("made", [albert_file, xlm_roberta_file, deberta_file])
def test_a_model_is_read_as_a_protocol_buffer_parser_reads_it(made):
    data = made().to_bytes()
    expected = sentencepiece_model.ModelProto()
    expected.ParseFromString(data)
    model = read_sentencepiece(data, "spm.model")
    assert list(model.pieces) == [(piece.piece, piece.score) for piece in expected.pieces]
    assert [int(kind) for kind in model.kinds] == [piece.type for piece in expected.pieces]
    assert model.unk_id == expected.trainer_spec.unk_id
    assert model.charsmap == expected.normalizer_spec.precompiled_charsmap
    assert len(model.pieces) > 300


PIECES = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=70),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        st.sampled_from([1, 3, 4, 5, 6]),
    ),
    max_size=6,
    unique_by=lambda piece: piece[0],
)


@given(PIECES, st.binary(max_size=40))
def test_any_model_is_read_back(pieces, rules):
    written = [piece for piece in pieces if piece[0] != "<unk>"]
    unknown = len(written)
    data = Pieces([*written, UNKNOWN], unk_id=unknown, rules=rules).to_bytes()
    model = read_sentencepiece(data, "x")
    assert [(*piece, int(kind)) for piece, kind in zip(model.pieces, model.kinds, strict=True)] == [
        *written,
        UNKNOWN,
    ]
    assert (model.unk_id, model.charsmap) == (unknown, rules)


def test_fields_of_other_kinds_are_passed_over():
    extra = b"\x20\x96\x01" + b"\x29" + bytes(8) + b"\x35" + bytes(4) + b"\xd2\x0f\x02ab"
    model = read_sentencepiece(Pieces([UNKNOWN], extra=extra).to_bytes(), "x")
    assert model.pieces == (("<unk>", 0.0),)
    assert model.kinds == (PieceKind.UNKNOWN,)


def test_a_piece_written_in_another_order_is_the_same():
    usual = Pieces([UNKNOWN, ("ab", -1.5, 1)]).to_bytes()
    start = usual.index(b"\x0a\x02ab")
    score = b"\x15" + struct.pack("<f", -1.5)
    turned = usual.replace(b"\x0a\x02ab" + score, score + b"\x0a\x02ab")
    assert turned != usual
    assert start > 0
    assert read_sentencepiece(turned, "x") == read_sentencepiece(usual, "x")


def test_what_is_not_stated_has_the_defaults_of_the_format():
    # A piece of two fields: its text, and that it is the unknown one.
    model = read_sentencepiece(b"\x0a\x05\x0a\x01u\x18\x02", "x")
    assert (model.pieces, model.unk_id, model.charsmap) == ((("u", 0.0),), 0, b"")


def broken(pieces, **fields):
    return Pieces([UNKNOWN, *pieces], **fields).to_bytes()


BROKEN = [
    (b"", "it holds no pieces"),
    (broken([], algorithm=2), r"another algorithm \(BPE\)"),
    (broken([], algorithm=3), r"another algorithm \(word\)"),
    (broken([], algorithm=9), r"another algorithm \(number 9\)"),
    (broken([], unk_id=5), "the unknown piece 5 is not one"),
    (broken([("a", 0.0, 1)], unk_id=1), "the unknown piece 1 is not one"),
    (broken([("", 0.0, 1)]), "piece 1 is empty"),
    (broken([("a", 0.0, 1), ("a", 0.0, 1)]), "piece 2 is 'a' again"),
    (broken([("a", float("nan"), 1)]), r"piece 1 \('a'\) has the score nan"),
    (broken([("a", float("-inf"), 3)]), r"piece 1 \('a'\) has the score -inf"),
    (broken([("a", 0.0, 7)]), "piece 1 is of the unknown kind 7"),
    (broken([])[:-1], "ends in the middle of a field"),
    (broken([]) + b"\x80", "ends in the middle of a number"),
    (broken([]) + b"\x0a", "ends in the middle of a number"),
    (broken([]) + b"\x08" + b"\xff" * 11, "does not end the number it is in"),
    (broken([]) + b"\x0b", "has no meaning there"),
    (b"\x08\x01", "a number is in the place of text"),
    (b"\x0a\x02\x1a\x00", "text is in the place of a number"),
    (b"\x0a\x02\x10\x00", "a score is not four bytes long"),
    (b"\x0a\x03\x0a\x01\xff", "piece 0 is not UTF-8"),
]


@each_row(("data", "message"), BROKEN)
def test_broken_bytes_are_explained(data, message):
    with pytest.raises(CheckpointFormatError, match=f"here/spm.model is not a uni.*{message}"):
        read_sentencepiece(data, "here/spm.model")


def complaint(data):
    """What is wrong with the bytes; the usual beginning where nothing is."""
    try:
        read_sentencepiece(data, "x")
    except CheckpointFormatError as error:
        return str(error)
    return "x is not a unigram model: no, it is one"


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(data):
    assert complaint(data).startswith("x is not a unigram model: ")
