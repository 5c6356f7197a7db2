"""Predict one answer per text: sentiment, topic, entailment, a score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, Unpack

import torch
from torch import Tensor

from flodl.hf.batch_encoding import Batch
from flodl.hf.head_kind import HeadKind
from flodl.hf.losses import sequence_loss
from flodl.hf.model_call import SequenceClassifierOutput
from flodl.hf.predict.batching import (
    Batching,
    Part,
    ReadingOptions,
    TextEncoding,
    answered,
    listed,
    need_tokenizer,
)
from flodl.hf.task_heads import LabelledHead
from flodl.hf.text.call_options import check_options

Scoring: TypeAlias = Literal["softmax", "sigmoid", "none"]
"""The function that turns logits into scores."""

_SCORINGS: Mapping[Scoring, Callable[[Tensor], Tensor]] = {
    "softmax": partial(torch.softmax, dim=-1),
    "sigmoid": torch.sigmoid,
    "none": Tensor.float,
}


class LabelScore(NamedTuple):
    """One label and its score.

    Attributes:
        label: Its name.
        score: A probability; for a regression the value.
    """

    label: str
    score: float


class SequenceClassifier(LabelledHead):
    """One answer per text: ``predict``, ``compute_loss``."""

    kind = HeadKind.SEQCLS
    output_class = SequenceClassifierOutput

    def predict(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        *,
        top_k: int | None = None,
        function_to_apply: Scoring | None = None,
        **options: Unpack[ReadingOptions],
    ) -> list[list[LabelScore]]:
        """Score every label for every text.

        Args:
            texts: Texts, or pairs of texts.
            top_k: Maximum number of labels of each text; None for all.
            function_to_apply: Applied to logits: softmax, sigmoid or nothing. None: sigmoid for
                multi-label models and for a single label, nothing for a regression, else softmax.
            **options: See :class:`~flodl.hf.predict.batching.ReadingOptions`.

        Returns:
            For each text, in order, the labels by score, highest first; equal scores keep the order
            of the labels.

        Raises:
            TokenizerMissingError: The model has no tokenizer.
            ValueError: A text is too long, or an argument is invalid.
            TypeError: ``texts`` is a single string, or an option is unknown.
        """
        check_options(options, ReadingOptions, "predict")
        inputs: list[str | tuple[str, str]] = listed(texts, "predict")
        labels = tuple(self.config.id2label.values())
        scoring = _scoring(self.config.problem_type, len(labels), function_to_apply)
        encoding = TextEncoding.of(need_tokenizer(self, "predict"), options)

        def ranked(part: Part) -> list[list[LabelScore]]:
            return _ranked(scoring(self.forward_encoded(part.batch).float()), labels, top_k)

        return answered(self, inputs, encoding, Batching.of(options), ranked)

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


def _scoring(problem: str | None, labels: int, given: Scoring | None) -> Callable[[Tensor], Tensor]:
    if given is not None and given not in _SCORINGS:
        raise ValueError(f"function_to_apply {given!r} is not one of {', '.join(_SCORINGS)}")
    if given is None and problem == "regression":
        given = "none"
    many = problem == "multi_label_classification" or labels == 1
    return _SCORINGS[given or ("sigmoid" if many else "softmax")]


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
