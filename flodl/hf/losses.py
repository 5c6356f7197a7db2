"""The losses of the heads, as their published checkpoints were trained with.

All are means, computed at least in float32. They stay finite if no label counts: a batch with only
ignored labels gives a loss of zero and gradients of zero, where a plain mean gives NaN.

Batches with padding give the same losses as ``transformers``. A softmax over all positions of a row
includes padding, and so does a label at padding. In these cases padding is computed too.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from flodl.hf.config import EncoderConfig
from flodl.hf.layers.layout import may_decide_on

IGNORED = -100
"""The label of positions that do not count."""

PROBLEM_TYPES = (
    "regression",
    "single_label_classification",
    "multi_label_classification",
    "soft",
)
"""The values of ``problem_type`` in :func:`sequence_classification_loss`."""


def sequence_classification_loss(
    logits: Tensor, labels: Tensor, problem_type: str | None = None
) -> Tensor:
    """Loss of one answer per text.

    Args:
        logits: ``[B, N]``.
        labels: For single-label classification, numbers of labels, ``[B]`` or ``[B, 1]``; -100
            does not count. Otherwise ``[B, N]``: targets of a regression (``[B]`` is enough for
            one label), zeros and ones, or probabilities.
        problem_type: ``"regression"`` (squared error), ``"single_label_classification"`` (cross
            entropy), ``"multi_label_classification"`` (binary cross entropy) or ``"soft"`` (cross
            entropy with probabilities). None: regression for one label, single-label for integer
            labels, else multi-label.

    Returns:
        The mean, 0-d.

    Raises:
        ValueError: A shape or dtype does not fit, or the problem type is unknown. The message says
            what is expected.
    """
    _check_rank("logits", logits, "[B, N]")
    kind = _problem_type(logits, labels) if problem_type is None else problem_type
    if kind not in PROBLEM_TYPES:
        raise ValueError(f"problem_type {kind!r} is not one of {', '.join(PROBLEM_TYPES)}")
    logits = _at_least_float32(logits)
    if kind == "single_label_classification":
        numbers = _one_per_row(logits, labels, kind)
        _warn_if_none_counts(numbers != IGNORED)
        return _mean_of_counted(logits, numbers, IGNORED)
    labels = labels.to(logits.device)
    if kind == "regression" and logits.shape[1] == 1:
        return F.mse_loss(logits[:, 0], _one_per_row(logits, labels, kind).to(logits.dtype))
    _check_same_shape(logits, labels, kind)
    targets = labels.to(logits.dtype)
    if kind == "regression":
        return F.mse_loss(logits, targets)
    if kind == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(logits, targets)
    return F.cross_entropy(logits, targets)


def deberta_sequence_classification_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of DeBERTa classifiers whose configuration names no problem type.

    - One label: squared error.
    - Labels ``[B]``: cross entropy over the rows whose label is not negative; zero if there is
      no such row.
    - Labels ``[B, N]``: cross entropy with probabilities. Other families use binary cross entropy.

    Args:
        logits: ``[B, N]``.
        labels: ``[B]`` or ``[B, N]``; for one label they are floating-point targets.

    Returns:
        The mean, 0-d.

    Raises:
        ValueError: A shape does not fit, or targets of a regression are integers, which the
            published implementation also refuses. The message says what is expected.
    """
    _check_rank("logits", logits, "[B, N]")
    if logits.shape[1] == 1:
        if not labels.is_floating_point():
            raise ValueError(
                f"a DeBERTa model with one label is a regression: labels must be floating-point, "
                f"got {labels.dtype}"
            )
        return sequence_classification_loss(logits, labels, "regression")
    if labels.ndim == 1:
        numbers = _one_per_row(logits, labels, "single_label_classification").long()
        return _mean_of_counted(_at_least_float32(logits), numbers.clamp(min=-1), -1)
    if labels.ndim == 2 and labels.shape[1] == 1:
        raise ValueError(
            "labels [B, 1] have no meaning for a DeBERTa model without problem_type: give [B] "
            'numbers of labels, or set problem_type="single_label_classification"'
        )
    return sequence_classification_loss(logits, labels, "soft")


def token_classification_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of one label per token.

    Args:
        logits: ``[B, S, N]``.
        labels: ``[B, S]`` numbers of labels; -100 does not count.

    Returns:
        The mean over the positions that count, 0-d. Zero if no position counts, with a warning if
        the labels are in host memory. (Looking at labels on a GPU would make the program wait.)

    Raises:
        ValueError: A shape or dtype does not fit. The message says what is expected.
    """
    _check_rank("logits", logits, "[B, S, N]")
    return _per_position(logits, labels)


def masked_lm_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the tokens that were masked.

    Args:
        logits: ``[B, S, V]``.
        labels: ``[B, S]`` ids of the tokens; -100 does not count.

    Returns:
        As for :func:`token_classification_loss`.

    Raises:
        ValueError: A shape or dtype does not fit. The message says what is expected.
    """
    _check_rank("logits", logits, "[B, S, V]")
    return _per_position(logits, labels)


def question_answering_loss(
    logits: Tensor, start_positions: Tensor, end_positions: Tensor
) -> Tensor:
    """Mean of two cross entropies: where an answer starts and where it ends.

    Args:
        logits: ``[B, S, 2]``, start and end.
        start_positions: First token of each answer, ``[B]`` or ``[B, 1]``. Negative positions count
            as 0, the position for questions without an answer. Positions of S or more do not count.
        end_positions: Last token of each answer, likewise.

    Returns:
        The mean, 0-d. Zero if no position counts, with a warning if the positions are in host
        memory.

    Raises:
        ValueError: A shape or dtype does not fit. The message says what is expected.
    """
    _check_rank("logits", logits, "[B, S, 2]")
    if logits.shape[2] != 2:
        raise ValueError(f"logits must be [B, S, 2], got {list(logits.shape)}")
    logits = _at_least_float32(logits)
    length = logits.shape[1]
    starts = _one_per_row(logits, start_positions, "start_positions").clamp(0, length)
    ends = _one_per_row(logits, end_positions, "end_positions").clamp(0, length)
    _warn_if_none_counts(starts != length, ends != length)
    start_loss = _mean_of_counted(logits[..., 0], starts, length)
    return (start_loss + _mean_of_counted(logits[..., 1], ends, length)) / 2


def _problem_type(logits: Tensor, labels: Tensor) -> str:
    if logits.shape[1] == 1:
        return "regression"
    whole = not (labels.is_floating_point() or labels.dtype == torch.bool)
    return "single_label_classification" if whole else "multi_label_classification"


def some_at_padding(mask: Tensor, labels: Tensor) -> bool:
    """Whether a label at padding counts; False for a call that is recorded for later calls."""
    if labels.shape != mask.shape or not may_decide_on(mask):
        return False
    return bool(((labels.to(mask.device) != IGNORED) & (mask == 0)).any())


def sequence_loss(
    config: EncoderConfig, logits: Tensor, labels: Tensor, problem_type: str | None = None
) -> Tensor:
    """The loss of one answer per text, of the type that the call or the configuration names."""
    kind = config.problem_type if problem_type is None else problem_type
    if kind is None and config.model_type == "deberta-v2":
        return deberta_sequence_classification_loss(logits, labels)
    return sequence_classification_loss(logits, labels, kind)


def _per_position(logits: Tensor, labels: Tensor) -> Tensor:
    if labels.shape != logits.shape[:2]:
        raise ValueError(
            f"labels must be [B, S] = {list(logits.shape[:2])}, got {list(labels.shape)}"
        )
    _warn_if_none_counts(labels != IGNORED)
    return _mean_of_counted(_at_least_float32(logits).flatten(0, 1), labels.flatten(), IGNORED)


def _warn_if_none_counts(*counted: Tensor) -> None:
    """Warn if one of the tensors is false everywhere; tensors on a GPU are not checked."""
    for flags in counted:
        if flags.device.type == "cpu" and not torch.compiler.is_compiling() and not flags.any():
            warnings.warn(
                "no label of this batch counts, all are ignored: its loss is 0 and nothing is "
                "learned from it",
                stacklevel=4,
            )
            return


def _mean_of_counted(logits: Tensor, labels: Tensor, ignored: int) -> Tensor:
    if labels.is_floating_point():
        # Rounding such labels to integers would silently change them.
        raise ValueError(f"labels that are numbers must be integers, got {labels.dtype}")
    labels = labels.to(logits.device, torch.int64)
    total = F.cross_entropy(logits, labels, ignore_index=ignored, reduction="sum")
    return total / (labels != ignored).sum().clamp(min=1)


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _one_per_row(logits: Tensor, labels: Tensor, what: str) -> Tensor:
    rows = logits.shape[0]
    if tuple(labels.shape) not in {(rows,), (rows, 1)}:
        raise ValueError(
            f"{what} takes one label per row, [B] = [{rows}], got {list(labels.shape)}"
            if what in PROBLEM_TYPES
            else f"{what} must be [B] = [{rows}], got {list(labels.shape)}"
        )
    return labels.reshape(rows)


def _check_same_shape(logits: Tensor, labels: Tensor, kind: str) -> None:
    if labels.shape != logits.shape:
        raise ValueError(
            f"{kind} takes labels of the shape of the logits, [B, N] = {list(logits.shape)}, "
            f"got {list(labels.shape)}"
        )


def _check_rank(name: str, tensor: Tensor, shape: str) -> None:
    if tensor.ndim != shape.count(",") + 1:
        raise ValueError(f"{name} must be {shape}, got {list(tensor.shape)}")
