"""Predict one label per token, and entities from these: names, places, parts of speech."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, Unpack, overload

import torch
from torch import Tensor

from flodl.hf.head_kind import HeadKind
from flodl.hf.losses import token_classification_loss
from flodl.hf.model_call import TokenClassifierOutput
from flodl.hf.predict.batching import (
    Batching,
    Part,
    ReadingOptions,
    TextEncoding,
    answered,
    listed_texts,
    need_tokenizer,
)
from flodl.hf.task_heads import LabelsTokens
from flodl.hf.text.call_options import check_options

if TYPE_CHECKING:
    from tokenizers import Encoding

Aggregation: TypeAlias = Literal["simple", "first", "average", "max"]
"""How pieces of words become entities; see :meth:`TokenPrediction.predict`."""


class TokenPrediction(NamedTuple):
    """The prediction for one position of the input.

    Attributes:
        token: The piece, as spelled in the vocabulary.
        label: Name of the most likely label.
        score: Its probability.
        attends: Whether the model read the token; False for padding.
        start: First character of the text that it covers.
        end: The character after the last one; equal to ``start`` if it covers none.
        word_id: Number of its word, as the tokenizer splits the text; None if there is none.
        special: Whether the tokenizer added it: a special token or padding.
    """

    token: str
    label: str
    score: float
    attends: bool
    start: int
    end: int
    word_id: int | None
    special: bool


class TokenClassifier(LabelsTokens):
    """One label per token: ``predict``, ``compute_loss``."""

    kind = HeadKind.TOKCLS
    output_class = TokenClassifierOutput

    def _loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        return token_classification_loss(logits, labels)

    @overload
    def predict(
        self,
        texts: Sequence[str],
        *,
        aggregation: None = None,
        **options: Unpack[ReadingOptions],
    ) -> list[list[TokenPrediction]]: ...

    @overload
    def predict(
        self,
        texts: Sequence[str],
        *,
        aggregation: Aggregation,
        **options: Unpack[ReadingOptions],
    ) -> list[list[Entity]]: ...

    def predict(
        self,
        texts: Sequence[str],
        *,
        aggregation: Aggregation | None = None,
        **options: Unpack[ReadingOptions],
    ) -> list[list[TokenPrediction]] | list[list[Entity]]:
        """Label every token of every text, or find the entities in it.

        With ``"first"``, ``"average"`` or ``"max"`` every word gets one label:

        - ``"first"``: that of its first piece;
        - ``"average"``: that of the mean over its pieces;
        - ``"max"``: that of the piece with the highest probability.

        With ``"simple"`` every piece keeps its label. Adjacent words or pieces with the same label
        are then merged, unless the later one begins an entity (``B-``). The label ``O`` is left
        out. Some tokenizers mark the pieces that continue a word; otherwise spaces separate words.

        Args:
            texts: The texts.
            aggregation: As above; None for the labels of the tokens.
            **options: See :class:`~flodl.hf.predict.batching.ReadingOptions`.

        Returns:
            For each text, in order, one prediction per position of its row, with special tokens and
            padding; or its entities from left to right.

        Raises:
            TokenizerMissingError: The model has no tokenizer.
            ValueError: A text is too long, or an argument is invalid.
            TypeError: ``texts`` is a single string, an entry is not a text, or an option is
                unknown.
        """
        check_options(options, ReadingOptions, "predict")
        texts = listed_texts(texts, "predict")
        if aggregation is not None and aggregation not in AGGREGATIONS:
            raise ValueError(f"aggregation {aggregation!r} is not one of {', '.join(AGGREGATIONS)}")
        tokenizer = need_tokenizer(self, "predict")
        marked = bool(getattr(tokenizer.inner.model, "continuing_subword_prefix", None))
        unknown = tokenizer.unk_token_id

        def labelled(part: Part) -> list[list[Any]]:
            probabilities = self.forward_encoded(part.batch).float().softmax(dim=-1).cpu()
            rows = list(zip(part.inputs, part.batch.encodings or (), probabilities, strict=True))
            if aggregation is None:
                return [_tagged(row, scores, self.labels) for _, row, scores in rows]
            found = []
            for number, row, scores in rows:
                text = texts[number]
                pieces = _pieces_of(row, text, marked=marked, unknown=unknown)
                chosen = scores[pieces.columns]
                found.append(entities_of(pieces, chosen, self.labels, aggregation, text))
            return found

        encoding = TextEncoding.of(tokenizer, options)
        return answered(self, texts, encoding, Batching.of(options), labelled)


def _tagged(row: Encoding, probabilities: Tensor, labels: Sequence[str]) -> list[TokenPrediction]:
    """The prediction for each position of a row, given the probabilities of labels, ``[S, N]``."""
    best = probabilities.max(dim=-1)
    columns = zip(
        row.tokens,
        best.indices.tolist(),
        best.values.tolist(),
        row.attention_mask,
        row.offsets,
        row.word_ids,
        row.special_tokens_mask,
        strict=True,
    )
    return [
        TokenPrediction(token, labels[label], score, bool(read), start, end, word, bool(special))
        for token, label, score, read, (start, end), word, special in columns
    ]


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
        columns: Their columns in the row.
        spans: Start and end of each in the text.
        words: Number of the word of each, from 0 without gaps.
    """

    columns: Sequence[int]
    spans: list[tuple[int, int]]
    words: list[int]


def _pieces_of(row: Encoding, text: str, *, marked: bool, unknown: int | None) -> Pieces:
    """The pieces of one row and the words they form.

    Args:
        row: The row.
        text: Its text.
        marked: Whether the tokenizer marks the pieces that continue a word, for instance with
            ``##``. Then a piece continues a word if its spelling is longer or shorter than its
            text. Without marks it continues one unless its first character, or the one before, is
            a space.
        unknown: Id of the unknown token, which always begins a word.
    """
    columns = [column for column, special in enumerate(row.special_tokens_mask) if not special]
    ids, tokens, offsets = row.ids, row.tokens, row.offsets
    words: list[int] = []
    for column in columns:
        start, end = offsets[column]
        if marked:
            begins = len(tokens[column]) == end - start
        else:
            begins = start == 0 or " " in text[start - 1 : start + 1]
        begins = begins or ids[column] == unknown
        words.append(words[-1] + begins if words else 0)
    return Pieces(columns, [offsets[column] for column in columns], words)


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
    words = list(range(len(pieces.spans))) if aggregation == "simple" else pieces.words
    groups = [list(group) for _, group in groupby(range(len(words)), key=words.__getitem__)]
    best = _word_scores(probabilities, words, groups, aggregation).max(dim=-1)
    found = []
    for group, index, score in zip(
        groups, best.indices.tolist(), best.values.tolist(), strict=True
    ):
        start, end = pieces.spans[group[0]][0], pieces.spans[group[-1]][1]
        found.append(Entity(labels[index], score, text[start:end], start, end))
    entities = [_entity(group, text) for group in _merged(found)]
    return [entity for entity in entities if entity.label != _OUTSIDE]


def _word_scores(
    probabilities: Tensor, words: Sequence[int], groups: Sequence[list[int]], aggregation: str
) -> Tensor:
    """The distribution of labels that is used for each word, ``[W, N]``.

    Args:
        probabilities: Those of each piece, ``[T, N]``.
        words: The word of each piece.
        groups: The pieces of each word.
        aggregation: One of ``AGGREGATIONS``.
    """
    if aggregation == "average":
        sums = probabilities.new_zeros(len(groups), probabilities.shape[1])
        sums.index_add_(0, torch.tensor(words), probabilities)
        return sums / torch.tensor([len(group) for group in groups])[:, None]
    if aggregation == "max":
        surest = probabilities.amax(dim=-1).tolist()
        # max() returns the first of equal values.
        return probabilities[[max(group, key=surest.__getitem__) for group in groups]]
    return probabilities[[group[0] for group in groups]]


def _merged(items: Sequence[Entity]) -> list[list[Entity]]:
    """Group adjacent items with one tag; an item that begins an entity starts a new group."""
    groups: list[list[Entity]] = []
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


def _entity(items: Sequence[Entity], text: str) -> Entity:
    # The name drops all text before the first hyphen, also other prefixes than ``B-`` and ``I-``.
    label = items[0].label.split("-", 1)[-1]
    score = sum(item.score for item in items) / len(items)
    start, end = items[0].start, items[-1].end
    return Entity(label, score, text[start:end], start, end)
