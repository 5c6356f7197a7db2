"""A tokenizer of a SentencePiece ``.model`` file: a protocol buffer of pieces and a normaliser.

Only what a unigram tokenizer needs is kept. The wire format is that of
https://protobuf.dev/programming-guides/encoding, the field numbers are those of
``sentencepiece_model.proto`` (https://github.com/google/sentencepiece).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fdl.base.protobuf import BrokenMessageError, fields
from flodl.hf.errors import CheckpointFormatError, need
from flodl.hf.text.files import TokenizerFiles, flag, reading

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Pieces: TypeAlias = list[tuple[str, float]]

_SPACE: Final = "▁"

_FLOAT = struct.Struct("<f")
_UNIGRAM: Final = 1
_OTHERS: Final = {2: "BPE", 3: "word", 4: "character"}


class PieceKind(IntEnum):
    """The kind of a piece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_KINDS = {int(kind): kind for kind in PieceKind}


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """A unigram vocabulary.

    Attributes:
        pieces: Every piece and its log probability, in the order of their ids.
        kinds: The kind of each piece.
        unk_id: The id of the piece for text that no other piece covers.
        charsmap: The compiled normalisation rules; empty for none.
    """

    pieces: tuple[tuple[str, float], ...]
    kinds: tuple[PieceKind, ...]
    unk_id: int
    charsmap: bytes


def read_sentencepiece(data: bytes, where: str) -> SentencePieceModel:
    """Read the bytes of a model file.

    Args:
        data: The whole file.
        where: Its name, for messages.

    Raises:
        CheckpointFormatError: The file is broken, holds no pieces, or is not a unigram model.
    """
    pieces: list[tuple[str, float]] = []
    kinds: list[PieceKind] = []
    unk_id, algorithm, charsmap = 0, _UNIGRAM, b""  # the defaults of the format
    try:
        for number, value in fields(data):
            if number == 1:
                text, score, kind = _piece(_bytes(value), len(pieces))
                pieces.append((text, score))
                kinds.append(kind)
            elif number == 2:
                settings = dict(fields(_bytes(value)))
                algorithm = _number(settings.get(3, algorithm))
                unk_id = _number(settings.get(40, unk_id))
            elif number == 3:
                charsmap = _bytes(dict(fields(_bytes(value))).get(2, charsmap))
        if algorithm != _UNIGRAM:
            named = _OTHERS.get(algorithm, f"number {algorithm}")
            raise BrokenMessageError(f"it was trained with another algorithm ({named})")
        _check(pieces, kinds, unk_id)
    except BrokenMessageError as error:
        raise CheckpointFormatError(f"{where} is not a unigram model: {error}") from None
    return SentencePieceModel(tuple(pieces), tuple(kinds), unk_id, charsmap)


def _piece(data: bytes, index: int) -> tuple[str, float, PieceKind]:
    usual = _written_usually(data)
    if usual is not None:
        text, score, kind = *usual, PieceKind.NORMAL
    else:
        parts = dict(fields(data))
        text, score = _bytes(parts.get(1, b"")), _float(parts.get(2, bytes(_FLOAT.size)))
        number = _number(parts.get(3, PieceKind.NORMAL))
        if number not in _KINDS:
            raise BrokenMessageError(f"piece {index} is of the unknown kind {number}")
        kind = _KINDS[number]
    try:
        return text.decode(), score, kind
    except UnicodeDecodeError:
        raise BrokenMessageError(f"piece {index} is not UTF-8") from None


def _written_usually(data: bytes) -> tuple[bytes, float] | None:
    """Read a short piece, its score and no kind, in this order: the form of nearly all pieces.

    A file has hundreds of thousands of them. Returns None for any other form.
    """
    size = data[1] if len(data) > 1 else 0
    if len(data) != size + 7 or size > 0x7F or data[0] != 0x0A or data[size + 2] != 0x15:
        return None
    return data[2 : size + 2], _FLOAT.unpack_from(data, size + 3)[0]


def _check(pieces: list[tuple[str, float]], kinds: list[PieceKind], unk_id: int) -> None:
    if not pieces:
        raise BrokenMessageError("it holds no pieces")
    seen: set[str] = set()
    for index, (text, score) in enumerate(pieces):
        if not text or text in seen:
            raise BrokenMessageError(
                f"piece {index} is {'empty' if not text else f'{text!r} again'}"
            )
        if not math.isfinite(score):
            raise BrokenMessageError(f"piece {index} ({text!r}) has the score {score}")
        seen.add(text)
    if unk_id >= len(pieces) or kinds[unk_id] is not PieceKind.UNKNOWN:
        raise BrokenMessageError(f"the unknown piece {unk_id} is not one")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise BrokenMessageError("a number is in the place of text")
    return value


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise BrokenMessageError("text is in the place of a number")
    return value


def _float(value: int | bytes) -> float:
    if isinstance(value, int) or len(value) != 4:
        raise BrokenMessageError("a score is not four bytes long")
    return float(_FLOAT.unpack(value)[0])


# --- The tokenizer -----------------------------------------------------------------------------


def sentence_pieces(files: TokenizerFiles) -> SentencePieceModel:
    """The vocabulary in the file that a tokenizer is made from.

    Raises:
        CheckpointFormatError: The file is broken, holds no pieces, or is not a unigram model.
    """
    name = files.source[0]
    return read_sentencepiece(files.contents[name], files.where(name))


def unigram(
    files: TokenizerFiles,
    model: SentencePieceModel,
    pieces: Pieces,
    unk_id: int,
    before: list[Any],
    *,
    by_words: bool,
) -> Tokenizer:
    """A unigram tokenizer that runs the file's own normalisation after some other steps.

    Args:
        files: The tokenizer's files; ``add_prefix_space`` says whether a text begins with a space.
        model: The vocabulary in them.
        pieces: Every piece of the tokenizer with its log probability; ids are positions.
        unk_id: The id of the unknown piece.
        before: Steps of the ``tokenizers`` package that normalise first.
        by_words: Whether texts are split at white space of any kind first.

    Raises:
        CheckpointFormatError: The file is broken.
    """
    tk = need("tokenizers")
    steps, splits = tk.normalizers, tk.pre_tokenizers
    with reading(files.where(files.source[0])):
        compiled = [steps.Precompiled(model.charsmap)] if model.charsmap else []
        tokenizer: Tokenizer = tk.Tokenizer(tk.models.Unigram(pieces, unk_id=unk_id))
    spaces = steps.Replace(tk.Regex(" {2,}"), " ")
    tokenizer.normalizer = steps.Sequence([*before, *compiled, spaces])
    scheme = "always" if flag(files, "add_prefix_space", True) else "never"
    marks = splits.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    tokenizer.pre_tokenizer = (
        splits.Sequence([splits.WhitespaceSplit(), marks]) if by_words else marks
    )
    tokenizer.decoder = tk.decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    _reserve(tokenizer, model)
    return tokenizer


def _reserve(tokenizer: Tokenizer, model: SentencePieceModel) -> None:
    """Let symbols that the file itself reserves never be split."""
    added = need("tokenizers").AddedToken
    tokenizer.add_tokens(
        [
            added(piece, normalized=False, special=kind is PieceKind.CONTROL)
            for (piece, _), kind in zip(model.pieces, model.kinds, strict=True)
            if kind in (PieceKind.CONTROL, PieceKind.USER_DEFINED)
        ]
    )
