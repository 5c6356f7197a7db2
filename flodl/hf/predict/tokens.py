"""Predict one label per token, and entities from these: names, places, parts of speech."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple, Self, TypeAlias, overload

import torch
from torch import Tensor

from flodl.hf.batch_encoding import Batch, mask_of, token_fact
from flodl.hf.head_kind import HeadKind
from flodl.hf.losses import token_classification_loss
from flodl.hf.model_call import TokenClassifierOutput
from flodl.hf.predict.batching import (
    Batching,
    TextEncoding,
    encoded_batches,
    listed_texts,
    need_tokenizer,
    running,
)
from flodl.hf.task_heads import LabelsTokens
from flodl.hf.text.call_options import TruncationChoice
from flodl.hf.tokenizer import PreTrainedTokenizerFast

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
        truncation: TruncationChoice = False,
        max_length: int | None = None,
        batch_size: int | None = 32,
        max_tokens: int | None = None,
        bucket: bool = True,
    ) -> list[list[TokenPrediction]]: ...

    @overload
    def predict(
        self,
        texts: Sequence[str],
        *,
        aggregation: Aggregation,
        truncation: TruncationChoice = False,
        max_length: int | None = None,
        batch_size: int | None = 32,
        max_tokens: int | None = None,
        bucket: bool = True,
    ) -> list[list[Entity]]: ...

    def predict(
        self,
        texts: Sequence[str],
        *,
        aggregation: Aggregation | None = None,
        truncation: TruncationChoice = False,
        max_length: int | None = None,
        batch_size: int | None = 32,
        max_tokens: int | None = None,
        bucket: bool = True,
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
            truncation: Whether texts that are too long are cut; otherwise they raise an error.
            max_length: Tokens to cut to; None for the limit of the model.
            batch_size: See :class:`Batching`.
            max_tokens: See :class:`Batching`.
            bucket: See :class:`Batching`.

        Returns:
            For each text, in order, one prediction per position of its row, with special tokens and
            padding; or its entities from left to right.

        Raises:
            TokenizerMissingError: The model has no tokenizer.
            ValueError: A text is too long, or an argument is invalid.
            TypeError: ``texts`` is a single string, or an entry is not a text.
        """
        texts = listed_texts(texts, "predict")
        if aggregation is not None and aggregation not in AGGREGATIONS:
            raise ValueError(f"aggregation {aggregation!r} is not one of {', '.join(AGGREGATIONS)}")
        tokenizer = need_tokenizer(self, "predict")
        encoding = TextEncoding(tokenizer, truncation, max_length)
        words = WordRule.of(tokenizer)
        tagged: list[list[TokenPrediction]] = [[] for _ in texts]
        entities: list[list[Entity]] = [[] for _ in texts]
        with running(self._graph) as device:
            batching = Batching(batch_size, max_tokens, bucket)
            for rows, _, batch in encoded_batches(texts, encoding, batching.on(device)):
                probabilities = self.forward_encoded(batch).float().softmax(dim=-1).cpu()
                if aggregation is None:
                    found = _tagged(batch, probabilities, self.labels, tokenizer)
                    for row, predictions in zip(rows, found, strict=True):
                        tagged[row] = predictions
                    continue
                special, offsets = (
                    token_fact(batch, "special_tokens_mask"),
                    token_fact(batch, "offsets"),
                )
                for index, row in enumerate(rows):
                    pieces = words.pieces(
                        batch["input_ids"][index], special[index], offsets[index], texts[row]
                    )
                    chosen = probabilities[index, pieces.columns]
                    entities[row] = entities_of(
                        pieces, chosen, self.labels, aggregation, texts[row]
                    )
        return tagged if aggregation is None else entities


def _tagged(
    enc: Batch,
    probabilities: Tensor,
    labels: Sequence[str],
    tokenizer: PreTrainedTokenizerFast,
) -> list[list[TokenPrediction]]:
    best = probabilities.max(dim=-1)
    spelled = tokenizer.inner.id_to_token
    columns = zip(
        enc["input_ids"].tolist(),
        best.indices.tolist(),
        best.values.tolist(),
        mask_of(enc).tolist(),
        token_fact(enc, "offsets").tolist(),
        token_fact(enc, "word_ids").tolist(),
        token_fact(enc, "special_tokens_mask").tolist(),
        strict=True,
    )
    return [
        [
            TokenPrediction(
                spelled(token) or "",
                labels[label],
                score,
                bool(attends),
                start,
                end,
                None if word < 0 else word,
                bool(special),
            )
            for token, label, score, attends, (start, end), word, special in zip(*row, strict=True)
        ]
        for row in columns
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

    tokenizer: PreTrainedTokenizerFast
    marks_pieces: bool
    unknown: int | None

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> Self:
        """The rule for a tokenizer."""
        model = tokenizer.inner.model
        marks = bool(getattr(model, "continuing_subword_prefix", None))
        return cls(tokenizer, marks, tokenizer.unk_token_id)

    def pieces(self, row: Tensor, special: Tensor, offsets: Tensor, text: str) -> Pieces:
        """The pieces of one row of a batch and the words they form.

        Args:
            row: The ids of the row, ``[S]``.
            special: 1 for special tokens and padding, ``[S]``.
            offsets: First character of each token and the one after its last, ``[S, 2]``.
            text: The text of the row.
        """
        columns = (special == 0).nonzero()[:, 0]
        spans = [(start, end) for start, end in offsets[columns].tolist()]
        ids = row[columns].tolist()
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
