"""Predict one answer per text: sentiment, topic, entailment, a score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from flodl.hf.head_kind import HeadKind
from flodl.hf.losses import sequence_loss
from flodl.hf.model_call import SequenceClassifierOutput
from flodl.hf.predict.batching import Batching, encoded_batches, running
from flodl.hf.predict.text import TextEncoding, listed, need_tokenizer
from flodl.hf.task_heads import LabelledHead
from flodl.hf.text.call_options import TruncationChoice
from flodl.hf.text.encodings import Batch

Scoring: TypeAlias = Literal["softmax", "sigmoid", "none"]
"""The function that turns logits into scores."""

_SCORINGS = ("softmax", "sigmoid", "none")


class LabelScore(NamedTuple):
    """One label and its score.

    Attributes:
        label: Its name.
        score: A probability; for a regression the value.
    """

    label: str
    score: float


class SequenceClassifier(LabelledHead):
    """One answer per text: ``predict``, ``classify``, ``compute_loss``."""

    kind = HeadKind.SEQCLS
    output_class = SequenceClassifierOutput

    def predict(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        *,
        top_k: int | None = None,
        function_to_apply: Scoring | None = None,
        truncation: TruncationChoice = False,
        max_length: int | None = None,
        batch_size: int | None = 32,
        max_tokens: int | None = None,
        bucket: bool = True,
    ) -> list[list[LabelScore]]:
        """Score every label for every text.

        Args:
            texts: Texts, or pairs of texts.
            top_k: Maximum number of labels of each text; None for all.
            function_to_apply: Applied to logits: softmax, sigmoid or nothing. None: sigmoid for
                multi-label models and for a single label, nothing for a regression, else softmax.
            truncation: Whether and how to cut texts that are too long: see
                :class:`~flodl.hf.predict.text.TextEncoding`. Without it they raise an error.
            max_length: Tokens to cut to; None for the limit of the model.
            batch_size: See :class:`Batching`.
            max_tokens: See :class:`Batching`.
            bucket: See :class:`Batching`.

        Returns:
            For each text, in order, the labels by score, highest first; equal scores keep the order
            of the labels.

        Raises:
            TokenizerMissingError: The model has no tokenizer.
            ValueError: A text is too long, or an argument is invalid.
            TypeError: ``texts`` is a single string.
        """
        inputs: list[str | tuple[str, str]] = listed(texts, "predict")
        scoring = _scoring(self, function_to_apply)
        encoding = TextEncoding(need_tokenizer(self, "predict"), truncation, max_length)
        batching = Batching(batch_size, max_tokens, bucket)
        results: list[list[LabelScore]] = [[] for _ in inputs]
        with running(self._graph) as device:
            for rows, _, batch in encoded_batches(inputs, encoding, batching.on(device)):
                scores = _scores(self.forward_encoded(batch), scoring)
                ranked = _ranked(scores, self.labels, top_k)
                for row, result in zip(rows, ranked, strict=True):
                    results[row] = result
        return results

    def classify(
        self,
        enc: Batch,
        *,
        top_k: int | None = None,
        function_to_apply: Scoring | None = None,
    ) -> list[list[LabelScore]]:
        """Score every label for texts that are encoded already, all in one batch.

        Args:
            enc: Encoded texts.
            top_k: As for :meth:`predict`.
            function_to_apply: As for :meth:`predict`.

        Returns:
            As for :meth:`predict`.

        Raises:
            ValueError: An argument is invalid.
        """
        scoring = _scoring(self, function_to_apply)
        with running(self._graph):
            scores = _scores(self.forward_encoded(enc), scoring)
            return _ranked(scores, self.labels, top_k)

    def compute_loss(self, enc: Batch, labels: Tensor, problem_type: str | None = None) -> Tensor:
        """Run the model and compare with the labels.

        Args:
            enc: Encoded texts.
            labels: See :func:`~flodl.hf.losses.sequence_classification_loss`.
            problem_type: Replaces that of the configuration; see there too. It is decided in every
                call and never written to the configuration.

        Returns:
            The loss, 0-d.

        Raises:
            ValueError: A shape or dtype of the labels does not fit.
        """
        return sequence_loss(self.config, self.forward_encoded(enc), labels, problem_type)

    def _loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        return sequence_loss(self.config, logits, labels)


def _scoring(head: SequenceClassifier, given: Scoring | None) -> Scoring:
    if given is not None:
        if given not in _SCORINGS:
            raise ValueError(f"function_to_apply {given!r} is not one of {', '.join(_SCORINGS)}")
        return given
    problem = head.config.problem_type
    if problem == "regression":
        return "none"
    many = problem == "multi_label_classification" or len(head.labels) == 1
    return "sigmoid" if many else "softmax"


def _scores(logits: Tensor, scoring: Scoring) -> Tensor:
    logits = logits.float()
    if scoring == "softmax":
        return logits.softmax(dim=-1)
    return logits.sigmoid() if scoring == "sigmoid" else logits


def _ranked(scores: Tensor, labels: Sequence[str], top_k: int | None) -> list[list[LabelScore]]:
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    ordered = torch.sort(scores, dim=-1, descending=True, stable=True)
    values = ordered.values[:, :top_k].tolist()
    indices = ordered.indices[:, :top_k].tolist()
    return [
        [LabelScore(labels[index], value) for index, value in zip(*row, strict=True)]
        for row in zip(indices, values, strict=True)
    ]
