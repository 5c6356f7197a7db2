"""Losses: the numbers of the formulas, gradients against finite differences, early refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.nn import functional

from flodl.nn import losses
from flodl.nn.losses import (
    bce_loss,
    bce_with_logits_loss,
    cross_entropy_loss,
    focal_loss,
    kl_div_loss,
    poisson_nll_loss,
    smooth_l1_loss,
    triplet_margin_loss,
)
from tests.rows import each_row

LOGITS = [[2, 0.5, -1], [-0.5, 1.5, 0.3]]


@pytest.mark.case("runtime", 56)
def test_focal_loss_plays_down_what_is_sure():
    logits, target = tensor(LOGITS), tensor([0, 1])
    assert focal_loss(logits, target).item() == pytest.approx(0.0055677, abs=5e-8)
    plain = focal_loss(logits, target, alpha=1, gamma=0)
    assert plain.item() == pytest.approx(0.3017707, abs=1e-7)
    assert plain.item() == pytest.approx(cross_entropy_loss(logits, target).item())


@pytest.mark.case("runtime", 56)
def test_kl_divergence_is_the_mean_over_samples():
    log_prediction = tensor([[2, 1, 0.1], [0.5, 1.5, 0.3]]).log_softmax(1)
    uniform = torch.full((2, 3), 1 / 3)
    assert kl_div_loss(log_prediction, uniform).item() == pytest.approx(0.2160371, abs=1e-7)
    logarithms = kl_div_loss(log_prediction, uniform.log(), log_target=True)
    assert logarithms.item() == pytest.approx(0.2160371, abs=1e-6)


@pytest.mark.case("runtime", 57)
def test_smooth_l1_joins_square_and_line_at_a_positive_beta():
    prediction, target = tensor([1.0, 5.0]), tensor([1.5, 2.0])
    assert smooth_l1_loss(prediction, target, 1).item() == pytest.approx(1.3125)
    for beta in (-1, 0, math.nan):
        with pytest.raises(ValueError, match="beta must be above 0"):
            smooth_l1_loss(prediction, target, beta)


@pytest.mark.case("runtime", 57)
def test_poisson_and_triplet_losses_give_the_numbers_of_their_formulas():
    counts = tensor([1.0, 2.0, 3.0])
    assert poisson_nll_loss(counts, counts).item() == pytest.approx(5.3976250, abs=1e-6)
    anchor, positive, negative = tensor([[1.0, 0.0]]), tensor([[0.9, 0.1]]), tensor([[0.0, 1.0]])
    loss = triplet_margin_loss(anchor, positive, negative, margin=2)
    assert loss.item() == pytest.approx(0.7272, abs=1e-4)


@each_row(
    "name",
    [
        "mse_loss",
        "l1_loss",
        "nll_loss",
        "ctc_loss",
        "triplet_margin_loss",
        "cosine_embedding_loss",
        "hinge_embedding_loss",
        "margin_ranking_loss",
        "poisson_nll_loss",
    ],
)
def test_nine_losses_are_torchs_own(name):
    assert getattr(losses, name) is getattr(functional, name)


# --- Against torch ------------------------------------------------------------------------------


def test_the_wrappers_give_torchs_numbers():
    torch.manual_seed(0)
    logits, classes = torch.randn(6, 4), torch.randint(4, (6,))
    weight = tensor([1.0, 2.0, 0.5, 3.0])
    assert torch.equal(
        cross_entropy_loss(logits, classes, weight=weight, ignore_index=2, label_smoothing=0.1),
        functional.cross_entropy(logits, classes, weight, ignore_index=2, label_smoothing=0.1),
    )
    shares = torch.rand(6, 4)
    assert torch.equal(cross_entropy_loss(logits, shares), functional.cross_entropy(logits, shares))
    assert torch.equal(
        bce_with_logits_loss(logits, shares, weight=weight, pos_weight=2 * weight),
        functional.binary_cross_entropy_with_logits(logits, shares, weight, pos_weight=2 * weight),
    )
    sure = logits.sigmoid()
    assert torch.equal(
        bce_loss(sure, shares, weight=weight), functional.binary_cross_entropy(sure, shares, weight)
    )
    assert torch.equal(
        smooth_l1_loss(logits, shares, 0.3), functional.smooth_l1_loss(logits, shares, beta=0.3)
    )


@each_row("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_class_indices_may_have_any_integer_type(dtype):
    logits, target = tensor(LOGITS), tensor([0, 1])
    for loss in (cross_entropy_loss, focal_loss):
        assert torch.equal(loss(logits, target.to(dtype)), loss(logits, target))


@each_row("dtype", [torch.bool, torch.uint8, torch.int64, torch.float64])
def test_binary_targets_may_have_any_type(dtype):
    logits, target = tensor([0.3, -2.0]), tensor([1.0, 0.0])
    for loss, prediction in ((bce_with_logits_loss, logits), (bce_loss, logits.sigmoid())):
        assert torch.equal(loss(prediction, target.to(dtype)), loss(prediction, target))


def test_cross_entropy_takes_one_prediction_per_pixel():
    torch.manual_seed(0)
    logits, target = torch.randn(2, 5, 3, 3), torch.randint(5, (2, 3, 3), dtype=torch.uint8)
    one_by_one = cross_entropy_loss(logits.movedim(1, -1).reshape(-1, 5), target.reshape(-1))
    torch.testing.assert_close(cross_entropy_loss(logits, target), one_by_one)


def test_the_logits_of_a_sure_classifier_do_not_overflow():
    logits = tensor([1000.0, -1000.0], requires_grad=True)
    loss = bce_with_logits_loss(logits, tensor([0.0, 1.0]))
    loss.backward()
    assert loss.item() == 1000
    assert logits.grad.tolist() == [0.5, -0.5]


# --- Focal loss ---------------------------------------------------------------------------------


def test_focal_loss_is_its_formula_written_out():
    torch.manual_seed(1)
    logits, target = torch.randn(9, 5, dtype=torch.float64), torch.randint(5, (9,))
    p = logits.softmax(1)[torch.arange(9), target]
    for alpha, gamma in ((0.25, 2.0), (1.0, 0.5), (0.7, 5.0)):
        expected = (-alpha * (1 - p) ** gamma * p.log()).mean()
        torch.testing.assert_close(focal_loss(logits, target, alpha, gamma), expected)


@each_row("gamma", [0.0, 0.5, 1.0, 2.0])
def test_a_perfectly_classified_sample_has_a_finite_gradient(gamma):
    logits = tensor([[200.0, 0.0], [0.0, 200.0]], requires_grad=True)
    focal_loss(logits, tensor([0, 0]), gamma=gamma).backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[0].tolist() == [0, 0]
    assert logits.grad[1, 0] == pytest.approx(-0.125)


@each_row(
    ("logits", "target", "settings", "complaint"),
    [
        ((4, 3), (3,), {}, r"\[4, 3\] and \[3\]"),
        ((4, 3, 2), (4,), {}, r"needs logits \[N, C\]"),
        ((4, 3), (4, 3), {}, r"class indices \[N\]"),
        ((4, 3), (4,), {"gamma": -1}, "gamma must be at least 0"),
    ],
)
def test_what_focal_loss_cannot_compute_it_refuses(logits, target, settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        focal_loss(torch.zeros(logits), torch.zeros(target, dtype=torch.int64), **settings)
    with pytest.raises(ValueError, match="float32"):
        focal_loss(torch.zeros(4, 3), torch.zeros(4))


@each_row("loss", [bce_loss, bce_with_logits_loss, kl_div_loss, smooth_l1_loss])
def test_shapes_that_would_be_broadcast_are_refused(loss):
    with pytest.raises(ValueError, match=rf"{loss.__name__}: .* \[4, 1\] and \[4\]"):
        loss(torch.full((4, 1), 0.5), torch.full((4,), 0.5))


# --- Gradients ----------------------------------------------------------------------------------


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


CLASSES = tensor([0, 2, 1, 3, 2])
SHARES = tensor([[0.2, 0.9, 0.5, 0.1]] * 5, dtype=torch.float64)
WEIGHT = tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
GRADIENTS = {
    "cross entropy": lambda x: cross_entropy_loss(
        x, CLASSES, weight=WEIGHT, ignore_index=1, label_smoothing=0.2
    ),
    "cross entropy of shares": lambda x: cross_entropy_loss(x, SHARES, weight=WEIGHT),
    "bce": lambda x: bce_loss(x.sigmoid(), SHARES, weight=WEIGHT),
    "bce with logits": lambda x: bce_with_logits_loss(
        x, SHARES, weight=WEIGHT, pos_weight=3 * WEIGHT
    ),
    "kl divergence": lambda x: kl_div_loss(x.log_softmax(1), SHARES),
    "kl divergence of logarithms": lambda x: kl_div_loss(
        x.log_softmax(1), SHARES.log(), log_target=True
    ),
    "smooth l1": lambda x: smooth_l1_loss(x, SHARES, beta=0.4),
    "focal": lambda x: focal_loss(x, CLASSES, alpha=0.7, gamma=1.5),
    "focal, default": lambda x: focal_loss(x, CLASSES),
}


@each_row("loss", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_agree_with_finite_differences(loss):
    torch.manual_seed(2)
    x = double(5, 4)
    assert torch.autograd.gradcheck(loss, x)
    assert torch.autograd.grad(loss(x), x)[0].abs().sum() > 0


def test_focal_loss_can_be_differentiated_twice():
    torch.manual_seed(3)
    assert torch.autograd.gradgradcheck(GRADIENTS["focal"], double(5, 4))


@pytest.mark.parametrize("loss", GRADIENTS.values(), ids=GRADIENTS)
def test_a_compiled_step_traces_a_loss_in_one_piece(loss):
    torch.manual_seed(4)
    x = double(5, 4)
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), loss(x))
    torch._dynamo.reset()
