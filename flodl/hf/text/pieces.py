"""A tokenizer of the pieces of a SentencePiece file, like those of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from flodl.hf.dependencies import need
from flodl.hf.text.files import reading
from flodl.hf.text.sentencepiece import PieceKind, SentencePieceModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Pieces: TypeAlias = list[tuple[str, float]]

_SPACE: Final = "▁"


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
