"""Tokenizers of the pieces of a SentencePiece file, for both of its algorithms.

Unigram follows the tokenizer classes of transformers. BPE follows SentencePiece itself, because
published models were trained with it: the file says how spaces are treated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from flodl.hf.dependencies import need
from flodl.hf.text.files import reading
from flodl.hf.text.sentencepiece import PieceKind, SentencePieceModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Pieces: TypeAlias = list[tuple[str, float]]

_SPACE: Final = "▁"
_ALL: Final = 2**31


def unigram(
    model: SentencePieceModel,
    pieces: Pieces,
    unk_id: int,
    before: list[Any],
    *,
    spaced: bool,
    by_words: bool,
    where: str,
) -> Tokenizer:
    """A unigram tokenizer that runs the file's own normalisation after some other steps.

    Args:
        model: The file.
        pieces: Every piece of the tokenizer with its log probability; ids are positions.
        unk_id: The id of the unknown piece.
        before: Steps of the ``tokenizers`` package that normalise first.
        spaced: Whether a text begins with a space.
        by_words: Whether texts are split at white space of any kind first.
        where: The file, for messages.

    Raises:
        CheckpointFormatError: The file is broken.
    """
    tk = need("tokenizers")
    steps, splits = tk.normalizers, tk.pre_tokenizers
    with reading(where):
        compiled = [steps.Precompiled(model.charsmap)] if model.charsmap else []
        tokenizer: Tokenizer = tk.Tokenizer(tk.models.Unigram(pieces, unk_id=unk_id))
    spaces = steps.Replace(tk.Regex(" {2,}"), " ")
    tokenizer.normalizer = steps.Sequence([*before, *compiled, spaces])
    scheme = "always" if spaced else "never"
    marks = splits.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    tokenizer.pre_tokenizer = (
        splits.Sequence([splits.WhitespaceSplit(), marks]) if by_words else marks
    )
    tokenizer.decoder = tk.decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    _reserve(tokenizer, model)
    return tokenizer


def bpe(
    model: SentencePieceModel,
    pieces: Pieces,
    unk_id: int,
    before: list[Any],
    *,
    spaced: bool,
    where: str,
) -> Tokenizer:
    """A BPE tokenizer that divides texts as SentencePiece does.

    Args:
        model: The file.
        pieces: Every piece of the tokenizer with its score; ids are positions.
        unk_id: The id of the unknown piece.
        before: Steps of the ``tokenizers`` package that normalise first.
        spaced: Whether a text begins with a space.
        where: The file, for messages.

    Raises:
        CheckpointFormatError: The file is broken.
    """
    tk = need("tokenizers")
    steps = tk.normalizers
    whole = {piece for (piece, _), kind in zip(model.pieces, model.kinds, strict=True)
             if kind in (PieceKind.NORMAL, PieceKind.USER_DEFINED)}  # fmt: skip
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    with reading(where):
        compiled = [steps.Precompiled(model.charsmap)] if model.charsmap else []
        divided = tk.models.BPE(
            vocab=ids,
            merges=merges(pieces, whole),
            unk_token=pieces[unk_id][0],
            fuse_unk=True,
            byte_fallback=model.byte_fallback,
        )
        tokenizer: Tokenizer = tk.Tokenizer(divided)
    tokenizer.normalizer = steps.Sequence([*before, *compiled, *_spaces(model, spaced)])
    # Where no piece goes over a space, words are divided one by one, and remembered.
    if not any(_SPACE in piece[1:] for piece in whole):
        tokenizer.pre_tokenizer = tk.pre_tokenizers.Split(_SPACE, "merged_with_next")
    tokenizer.decoder = _decoder(model, spaced)
    _reserve(tokenizer, model)
    return tokenizer


def merges(pieces: Pieces, whole: set[str]) -> list[tuple[str, str]]:
    """The pairs that BPE merges, the most urgent first.

    SentencePiece merges the neighbours whose union is the piece with the highest score, whatever
    they are. So every way to divide a piece into two pieces is a merge.

    Args:
        pieces: Every piece with its score; ids are positions.
        whole: The pieces that texts are divided into.
    """
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    for piece, score in pieces:
        if piece not in whole:
            continue
        for cut in range(1, len(piece)):
            first, second = piece[:cut], piece[cut:]
            if first in whole and second in whole:
                found.append((-score, ids[first], ids[second], (first, second)))
    return [pair for *_, pair in sorted(found)]


def _spaces(model: SentencePieceModel, spaced: bool) -> list[Any]:
    """The treatment of spaces that the file asks for, as steps of normalisation."""
    tk = need("tokenizers")
    steps = tk.normalizers
    made: list[Any] = []
    if model.single_spaces:
        made += [
            steps.Replace(tk.Regex(r"\A +"), ""),
            steps.Replace(tk.Regex(" {2,}"), " "),
        ]
    if spaced:
        made.append(steps.Prepend(_SPACE))
    made.append(steps.Replace(" ", _SPACE))
    if model.single_spaces:
        # SentencePiece cannot tell a space at the end from the mark for one.
        made.append(steps.Replace(tk.Regex(rf"{_SPACE}+\z"), ""))
    return made


def _decoder(model: SentencePieceModel, spaced: bool) -> Any:
    decoders = need("tokenizers").decoders
    made = [decoders.Replace(_SPACE, " ")]
    if model.byte_fallback:
        made.append(decoders.ByteFallback())
    made.append(decoders.Fuse())
    if spaced:
        made.append(decoders.Strip(" ", _ALL if model.single_spaces else 1, 0))
    return decoders.Sequence(made)


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
