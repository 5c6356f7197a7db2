"""Confusion matrix, ROC and precision-recall curves against scikit-learn, to the last digit."""

from __future__ import annotations

import math
import warnings
from functools import cache

import numpy as np
import pytest
import torch

from flodl.monitor.media.classification import confusion_matrix, normalized, pr, roc
from tests.rows import each_row


@cache
def metrics():
    """Those of scikit-learn; importing it would lengthen every collection of the tests."""
    return pytest.importorskip("sklearn.metrics")


def samples(seed: int, classes: int, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, 300)
    labels[:classes] = np.arange(classes)
    scores = rng.normal(size=(300, classes))
    scores[np.arange(300), labels] += 0.7
    return labels, scores.round(1) if ties else scores


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_two_classes(seed, ties):
    labels, scores = samples(seed, 2, ties)
    scores = scores[:, 1] - scores[:, 0]
    [curve] = roc(labels, scores).curves
    assert curve.area == metrics().roc_auc_score(labels, scores)
    x, y, thresholds = metrics().roc_curve(labels, scores)
    assert (list(x), list(y), list(thresholds)) == (
        list(curve.x), list(curve.y), list(curve.thresholds),
    )  # fmt: skip
    [curve] = pr(labels, scores).curves
    assert curve.area == metrics().average_precision_score(labels, scores)
    precision, recall, _ = metrics().precision_recall_curve(labels, scores)
    assert (list(recall), list(precision)) == (list(curve.x), list(curve.y))
    assert (curve.positives, curve.negatives) == (labels.sum(), (1 - labels).sum())
    two = np.stack([-scores, scores], 1)
    assert pr(labels, two) == pr(labels, scores), "of two columns, the second is the score"


@pytest.mark.parametrize("ties", [False, True])
def test_each_class_against_the_others(ties):
    labels, scores = samples(7, 4, ties)
    found, precise = roc(labels, scores), pr(labels, scores)
    for at in range(4):
        one = labels == at
        assert found.curves[at].area == metrics().roc_auc_score(one, scores[:, at])
        assert precise.curves[at].area == metrics().average_precision_score(one, scores[:, at])
    odds = np.exp(scores)
    odds /= odds.sum(1, keepdims=True)
    mean = np.mean([curve.area for curve in roc(labels, odds).curves])
    assert mean == metrics().roc_auc_score(labels, odds, multi_class="ovr")


def test_by_hand():
    [curve] = roc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]).curves
    assert curve.area == 0.75
    assert list(zip(curve.x, curve.y, strict=True)) == [
        (0, 0),
        (0, 0.5),
        (0.5, 0.5),
        (0.5, 1),
        (1, 1),
    ]
    assert roc([0, 1, 0, 1], [5, 5, 5, 5]).curves[0].area == 0.5, "equal scores are a coin"
    [curve] = pr([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]).curves
    assert curve.area == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)


@each_row("kind", [torch.uint8, torch.float16, torch.bfloat16, torch.int64])
def test_scores_of_any_dtype(kind):
    labels = torch.tensor([0, 1, 0, 1, 1])
    scores = torch.tensor([0, 200, 100, 200, 50]).to(kind)
    expected = metrics().roc_auc_score(labels.numpy(), scores.double().numpy())
    assert roc(labels, scores).curves[0].area == expected


def test_a_class_without_samples_has_no_area():
    made = roc([0, 0, 2], np.eye(3)).curves
    assert [math.isnan(curve.area) for curve in made] == [False, True, False]
    assert pr([0, 0, 2], np.eye(3)).curves[1].as_json()["area"] is None
    assert math.isnan(roc([1, 1], [0.2, 0.3]).curves[0].area)


def test_a_long_curve_is_thinned_and_its_area_is_not():
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 20_000), rng.normal(size=20_000)
    [curve] = roc(labels, scores).curves
    assert len(curve.x) == 500
    assert (curve.x[0], curve.y[0], curve.x[-1], curve.y[-1]) == (0, 0, 1, 1)
    assert curve.area == metrics().roc_auc_score(labels, scores)


@each_row("normalize", [None, "true", "pred", "all"])
def test_a_confusion_matrix(normalize):
    labels, scores = samples(3, 5, ties=True)
    made = confusion_matrix(torch.tensor(labels), torch.tensor(scores), normalize=normalize)
    expected = metrics().confusion_matrix(labels, scores.argmax(1), normalize=normalize)
    assert (normalized(made) == expected).all()
    assert made.classes == ("0", "1", "2", "3", "4")
    same = confusion_matrix(labels, scores.argmax(1), classes=list("abcde"))
    assert (same.counts, same.classes) == (made.counts, tuple("abcde"))


def test_a_class_that_was_never_seen_has_shares_of_zero():
    made = confusion_matrix([0, 0, 2], [0, 2, 2], classes=["a", "b", "c"], normalize="true")
    assert made.counts == ((1, 0, 1), (0, 0, 0), (0, 0, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert normalized(made).tolist() == [[0.5, 0, 0.5], [0, 0, 0], [0, 0, 1]]
        assert normalized(made, "pred")[:, 1].tolist() == [0, 0, 0]


@each_row(
    ("call", "says"),
    [
        (lambda: roc([0, 1], [0.5]), r"labels of shape \[2\], scores of shape \[1\]"),
        (lambda: roc([[0, 1]], [0.5, 1.0]), r"labels of shape \[1, 2\]"),
        (lambda: roc([0.0, 1.0], [0.5, 1.0]), "labels of dtype float64"),
        (lambda: roc([0, 2], [0.5, 1.0]), "the label 2 is not one of the 2 classes 0 to 1"),
        (lambda: roc([0, 1], [0.5, math.nan]), "1 of 2 scores are nan or infinite"),
        (lambda: pr([0, 1], np.eye(2), classes=["a"]), "1 class names"),
        (lambda: confusion_matrix([0, -1], [0, 1]), "the label -1"),
        (lambda: confusion_matrix([0, 1], [0.0, 1.0]), "predictions of dtype float64"),
        (lambda: confusion_matrix([0], [0], normalize="rows"), "use None, 'true'"),
        (lambda: confusion_matrix([0], [5000]), "at most 1000"),
    ],
)
def test_an_error_names_shapes_and_values(call, says):
    with pytest.raises(ValueError, match=says):
        call()
