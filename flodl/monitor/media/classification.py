"""Confusion matrix, ROC and precision-recall curves, with the numbers of scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from flodl.monitor.media.captured import Captured
from flodl.monitor.media.records import ConfusionMatrix, Curve, Curves

Floats: TypeAlias = npt.NDArray[np.float64]

NORMALIZATIONS = (None, "true", "pred", "all")
MOST_CLASSES = 1000
MOST_POINTS = 500
"""Points of a curve that are kept; the area uses all of them."""


def check_samples(labels: Captured, scores: Captured, classes: Sequence[str] | None) -> None:
    """Check the shapes of labels and of predictions or scores, without reading values.

    Raises:
        ValueError: They do not fit each other; the message names the shapes.
    """
    shapes = f"labels of shape {list(labels.shape)}, scores of shape {list(scores.shape)}"
    if len(labels.shape) != 1 or len(scores.shape) not in (1, 2):
        raise ValueError(f"{shapes}: pass labels [N], and scores [N] or [N, classes]")
    if labels.shape[0] != scores.shape[0] or not labels.shape[0]:
        raise ValueError(f"{shapes}: pass one score for each label, and at least one")
    if labels.is_floating:
        raise ValueError(f"labels of dtype {labels.dtype}: pass class numbers, counted from 0")
    if classes is not None and len(scores.shape) == 2 and scores.shape[1] != len(classes):
        raise ValueError(f"{shapes}, and {len(classes)} class names: pass one name per class")


def confusion_matrix(
    labels: Any,
    predictions: Any,
    *,
    classes: Sequence[str] | None = None,
    normalize: str | None = None,
) -> ConfusionMatrix:
    """Count how often each class was predicted for samples of each class.

    Args:
        labels: Class numbers, shape ``[N]``, counted from 0.
        predictions: Class numbers, shape ``[N]``, or scores, shape ``[N, classes]``: then the class
            with the highest score is the prediction.
        classes: Names of the classes; None numbers them.
        normalize: See :attr:`ConfusionMatrix.normalize`.

    Raises:
        ValueError: The shapes do not fit, or a number is not that of a class.
    """
    if normalize not in NORMALIZATIONS:
        raise ValueError(f"normalize={normalize!r}: use None, 'true', 'pred' or 'all'")
    true, given = _captured(labels), _captured(predictions)
    check_samples(true, given, classes)
    expected, predicted = true.array().astype(np.int64), given.array()
    most = len(classes) if classes is not None else 0
    if predicted.ndim == 2:
        most = predicted.shape[1]
        predicted = predicted.argmax(axis=1)
    elif given.is_floating:
        raise ValueError(
            f"predictions of dtype {given.dtype} with shape {list(given.shape)}: pass class "
            "numbers, or scores of shape [N, classes]"
        )
    predicted = predicted.astype(np.int64)
    count = most or int(max(expected.max(), predicted.max())) + 1
    _check_numbers("label", expected, count)
    _check_numbers("prediction", predicted, count)
    if count > MOST_CLASSES:
        raise ValueError(f"a confusion matrix of {count} classes: at most {MOST_CLASSES} are shown")
    table = np.bincount(expected * count + predicted, minlength=count * count)
    rows = table.reshape(count, count).tolist()
    return ConfusionMatrix(_names(classes, count), tuple(map(tuple, rows)), normalize)


def normalized(matrix: ConfusionMatrix, by: str | None = None) -> Floats:
    """Return the matrix as shares; a class without samples has shares of 0.

    Args:
        matrix: The counts.
        by: See :attr:`ConfusionMatrix.normalize`; None takes that of the matrix.
    """
    counts = np.asarray(matrix.counts, float)
    by = by or matrix.normalize
    if by is None:
        return counts
    whole = {
        "true": counts.sum(axis=1, keepdims=True),
        "pred": counts.sum(axis=0, keepdims=True),
        "all": counts.sum(keepdims=True),
    }[by]
    shares = np.zeros_like(counts)
    np.divide(counts, whole, out=shares, where=whole != 0)
    return shares


def roc(labels: Any, scores: Any, *, classes: Sequence[str] | None = None) -> Curves:
    """Return the ROC curve of two classes, or of each class against all others.

    The area is that of ``sklearn.metrics.roc_auc_score``, also with equal scores. It is nan if a
    class has no samples, or all of them.

    Args:
        labels: Class numbers, shape ``[N]``, counted from 0.
        scores: Shape ``[N]`` or ``[N, 2]`` for two classes: the higher, the more likely is class 1.
            Shape ``[N, classes]`` for more.
        classes: Names of the classes; None numbers them.

    Raises:
        ValueError: The shapes do not fit, a label is not that of a class, or a score is nan or
            infinite.
    """
    return Curves(tuple(_roc(*one) for one in _each_class(labels, scores, classes)))


def pr(labels: Any, scores: Any, *, classes: Sequence[str] | None = None) -> Curves:
    """Return precision by recall for two classes, or for each class against all others.

    The area is ``sklearn.metrics.average_precision_score``, also with equal scores. It is nan for a
    class without samples, where scikit-learn warns and returns 0.

    Args and errors are those of :func:`roc`.
    """
    return Curves(tuple(_pr(*one) for one in _each_class(labels, scores, classes)))


def _each_class(
    labels: Any, scores: Any, classes: Sequence[str] | None
) -> list[tuple[str, npt.NDArray[np.bool_], npt.NDArray[Any]]]:
    """Return name, whether each sample is of the class, and its scores."""
    true, given = _captured(labels), _captured(scores)
    check_samples(true, given, classes)
    expected, values = true.array().astype(np.int64), given.array()
    if not np.isfinite(values).all():
        bad = int((~np.isfinite(values)).sum())
        raise ValueError(f"{bad} of {values.size} scores are nan or infinite")
    columns = 1 if values.ndim == 1 else values.shape[1]
    _check_numbers("label", expected, max(2, columns))
    if columns <= 2:
        name = classes[1] if classes is not None and len(classes) == 2 else ""
        return [(name, expected == 1, values.reshape(len(expected), columns)[:, -1])]
    names = _names(classes, columns)
    return [(names[at], expected == at, values[:, at]) for at in range(columns)]


def _counts(positive: npt.NDArray[np.bool_], scores: Any) -> tuple[Floats, Floats, Floats]:
    """Return false and true positives for each distinct threshold, from the highest on."""
    scores = scores.astype(np.float64)
    order = np.argsort(-scores, kind="stable")
    positive, scores = positive[order], scores[order]
    # Samples with equal scores pass a threshold together.
    ends = np.append(np.nonzero(np.diff(scores))[0], len(scores) - 1)
    true = np.cumsum(positive, dtype=np.float64)[ends]
    return 1 + ends.astype(np.float64) - true, true, scores[ends]


def _roc(name: str, positive: npt.NDArray[np.bool_], scores: Any) -> Curve:
    false, true, thresholds = _counts(positive, scores)
    if len(false) > 2:  # corners only: a point on a straight line between two others adds nothing
        corner = np.logical_or(np.diff(false, 2), np.diff(true, 2))
        kept = np.flatnonzero(np.r_[True, corner, True])
        false, true, thresholds = false[kept], true[kept], thresholds[kept]
    false, true = np.r_[0.0, false], np.r_[0.0, true]
    thresholds = np.r_[np.inf, thresholds]
    negatives, positives = int(false[-1]), int(true[-1])
    x, y = _share(false, negatives), _share(true, positives)
    area = float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2.0))
    return _curve(name, (x, y, thresholds), area, positives, negatives)


def _pr(name: str, positive: npt.NDArray[np.bool_], scores: Any) -> Curve:
    false, true, thresholds = _counts(positive, scores)
    positives, negatives = int(true[-1]), int(false[-1])
    precision = np.r_[(true / (true + false))[::-1], 1.0]
    recall = np.r_[_share(true, positives)[::-1], 0.0]
    thresholds = np.r_[thresholds[::-1], np.inf]
    area = float(max(0.0, -np.sum(np.diff(recall) * precision[:-1]))) if positives else np.nan
    return _curve(name, (recall, precision, thresholds), area, positives, negatives)


def _share(amounts: Floats, whole: int) -> Floats:
    return amounts / whole if whole else np.full(amounts.shape, np.nan)


def _curve(
    name: str, points: tuple[Floats, ...], area: float, positives: int, negatives: int
) -> Curve:
    count = len(points[0])
    if count > MOST_POINTS:
        places = np.unique(np.linspace(0, count - 1, MOST_POINTS).round().astype(int))
        points = tuple(one[places] for one in points)
    x, y, thresholds = (tuple(one.tolist()) for one in points)
    return Curve(name, x, y, thresholds, area, positives, negatives)


def _check_numbers(what: str, numbers: npt.NDArray[np.int64], count: int) -> None:
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= count:
        wrong = low if low < 0 else high
        raise ValueError(f"the {what} {wrong} is not one of the {count} classes 0 to {count - 1}")


def _names(classes: Sequence[str] | None, count: int) -> tuple[str, ...]:
    return tuple(map(str, classes)) if classes is not None else tuple(map(str, range(count)))


def _captured(values: Any) -> Captured:
    return values if isinstance(values, Captured) else Captured(values)
