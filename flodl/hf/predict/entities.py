"""Turn labels of pieces into entities of a text, by the rules that published models assume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Self

import torch
from torch import Tensor

from flodl.hf.encoded import EncodedBatch
from flodl.hf.tokenizer import HfTokenizer

AGGREGATIONS = ("simple", "first", "average", "max")

_OUTSIDE = "O"


class Entity(NamedTuple):
    """A labelled span of a text.

    Attributes:
        label: Its label, without ``B-`` or ``I-``.
        score: Mean probability of its words or pieces.
        text: The span, as written in the text.
        start: Its first character.
        end: The character after its last character.
    """

    label: str
    score: float
    text: str
    start: int
    end: int


class Pieces(NamedTuple):
    """The tokens of one row that come from its text.

    Attributes:
        columns: Their columns in the row, ``[T]``.
        spans: Start and end of each in the text.
        words: Number of the word of each, from 0 without gaps.
    """

    columns: Tensor
    spans: list[tuple[int, int]]
    words: list[int]


@dataclass(frozen=True, slots=True)
class WordRule:
    """Decides whether a piece continues the word of the piece before.

    Attributes:
        tokenizer: Spells the pieces.
        marks_pieces: Whether it marks the pieces that continue a word, for instance with ``##``.
            Then a piece continues a word if its spelling is longer or shorter than its text.
            Otherwise a piece continues a word if there is no space in or right before its first
            character.
        unknown: Id of the unknown token, which always begins a word.
    """

    tokenizer: HfTokenizer
    marks_pieces: bool
    unknown: int | None

    @classmethod
    def of(cls, tokenizer: HfTokenizer) -> Self:
        """The rule for a tokenizer."""
        model = tokenizer.inner.model
        marks = bool(getattr(model, "continuing_subword_prefix", None))
        return cls(tokenizer, marks, tokenizer.unk_token_id)

    def pieces(self, enc: EncodedBatch, row: int, text: str) -> Pieces:
        """The pieces of one row of a batch and the words they form.

        Args:
            enc: The batch.
            row: The row.
            text: The text of the row.
        """
        columns = (enc.special_mask[row] == 0).nonzero()[:, 0]
        spans = [(start, end) for start, end in enc.offsets[row, columns].tolist()]
        ids = enc.input_ids[row, columns].tolist()
        words: list[int] = []
        for token, (start, end) in zip(ids, spans, strict=True):
            continues = bool(words) and self._continues(token, start, end, text)
            words.append(words[-1] + (not continues) if words else 0)
        return Pieces(columns, spans, words)

    def _continues(self, token: int, start: int, end: int, text: str) -> bool:
        if token == self.unknown:
            return False
        if self.marks_pieces:
            return len(self.tokenizer.inner.id_to_token(token) or "") != end - start
        return start > 0 and " " not in text[start - 1 : start + 1]


class _Item(NamedTuple):
    """A piece or a word with its label."""

    label: str
    score: float
    start: int
    end: int


def entities_of(
    pieces: Pieces, probabilities: Tensor, labels: Sequence[str], aggregation: str, text: str
) -> list[Entity]:
    """The entities of one text, from left to right.

    Args:
        pieces: Its tokens.
        probabilities: Probability of every label for each token, ``[T, N]``.
        labels: Names of the labels.
        aggregation: One of ``AGGREGATIONS``.
        text: The text.
    """
    if not pieces.spans:
        return []
    if aggregation == "simple":
        scores, spans = probabilities, pieces.spans
    else:
        scores = _word_scores(probabilities, pieces.words, aggregation)
        spans = _word_spans(pieces)
    best = scores.max(dim=-1)
    items = [
        _Item(labels[index], score, *span)
        for index, score, span in zip(
            best.indices.tolist(), best.values.tolist(), spans, strict=True
        )
    ]
    groups = [_entity(group, text) for group in _merged(items)]
    return [entity for entity in groups if entity.label != _OUTSIDE]


def _word_scores(probabilities: Tensor, words: Sequence[int], aggregation: str) -> Tensor:
    """The distribution of labels that is used for each word, ``[W, N]``."""
    if aggregation == "average":
        index = torch.tensor(words)
        sums = probabilities.new_zeros(words[-1] + 1, probabilities.shape[1])
        sums.index_add_(0, index, probabilities)
        return sums / torch.bincount(index)[:, None]
    surest = probabilities.amax(dim=-1).tolist()
    chosen = []
    for _, group in groupby(range(len(words)), key=words.__getitem__):
        members = list(group)
        # max() returns the first of equal values.
        chosen.append(
            members[0] if aggregation == "first" else max(members, key=surest.__getitem__)
        )
    return probabilities[chosen]


def _word_spans(pieces: Pieces) -> list[tuple[int, int]]:
    spans = []
    for _, group in groupby(zip(pieces.words, pieces.spans, strict=True), key=lambda pair: pair[0]):
        members = [span for _, span in group]
        spans.append((members[0][0], members[-1][1]))
    return spans


def _merged(items: Sequence[_Item]) -> list[list[_Item]]:
    """Group adjacent items with one tag; an item that begins an entity starts a new group."""
    groups: list[list[_Item]] = []
    for item in items:
        begins, tag = _split(item.label)
        if groups and not begins and _split(groups[-1][-1].label)[1] == tag:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def _split(label: str) -> tuple[bool, str]:
    """Whether a label begins an entity, and its tag; only ``B-`` and ``I-`` are prefixes."""
    return label.startswith("B-"), label[2:] if label.startswith(("B-", "I-")) else label


def _entity(items: Sequence[_Item], text: str) -> Entity:
    # The name drops all text before the first hyphen, also other prefixes than ``B-`` and ``I-``.
    label = items[0].label.split("-", 1)[-1]
    score = sum(item.score for item in items) / len(items)
    start, end = items[0].start, items[-1].end
    return Entity(label, score, text[start:end], start, end)
