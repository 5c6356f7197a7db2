"""Starting values: bounds that are reached and not passed, and distributions as promised."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from flodl.nn.init import (
    kaiming_normal,
    kaiming_uniform,
    normal,
    orthogonal,
    trunc_normal,
    uniform,
    uniform_bias,
    xavier_normal,
    xavier_uniform,
)
from tests.rows import each_row

N = 200_000


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(42)


def cdf(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))


def assert_distributed(values, distribution):
    """Kolmogorov and Smirnov: 1.95/√n is passed by chance once in a thousand seeds."""
    ordered = values.double().flatten().sort().values
    expected = torch.tensor([distribution(x) for x in ordered[::100].tolist()])
    observed = torch.arange(0, len(ordered), 100) / len(ordered)
    assert (expected - observed).abs().max().item() < 1.95 / math.sqrt(len(ordered))


def assert_uniform(values, bound):
    assert values.abs().max().item() <= bound * (1 + 1e-6)
    assert values.max().item() > 0.9999 * bound
    assert values.min().item() < -0.9999 * bound
    assert_distributed(values, lambda x: (x / bound + 1) / 2)


def assert_normal(values, std):
    error = std / math.sqrt(values.numel())
    assert abs(values.mean().item()) < 4 * error
    assert values.std().item() == pytest.approx(std, abs=4 * error / math.sqrt(2))
    assert_distributed(values, lambda x: cdf(x / std))


# --- Uniform and normal -------------------------------------------------------------------------


@pytest.mark.case("runtime", 59)
@each_row(
    ("values", "bound"),
    [
        (lambda: kaiming_uniform((N,), 4), 1.2247449),
        (lambda: kaiming_uniform((N,), fan_in=4, a=math.sqrt(5)), 0.5),
        (lambda: xavier_uniform((N,), 3, 4), 0.9258201),
        (lambda: uniform_bias(16, (N,)), 0.25),
    ],
    ids=["kaiming a=0", "kaiming a=√5", "xavier", "bias"],
)
def test_uniform_values_fill_their_bounds(values, bound):
    assert_uniform(values(), bound)


@each_row(
    ("values", "std"),
    [
        (lambda: kaiming_normal((N,), 8), 0.5),
        (lambda: kaiming_normal((N,), 8, a=1.0), math.sqrt(1 / 8)),
        (lambda: xavier_normal((N,), 3, 5), 0.5),
        (lambda: normal((N,), 0.0, 0.02), 0.02),
    ],
    ids=["kaiming", "kaiming a=1", "xavier", "normal"],
)
def test_normal_values_have_their_deviation(values, std):
    assert_normal(values(), std)


def test_uniform_and_normal_take_any_place():
    values = uniform((N,), 2.0, 5.0)
    assert 2.0 <= values.min().item() < 2.001
    assert 4.999 < values.max().item() <= 5.0
    assert_uniform(values - 3.5, 1.5)
    assert_normal(normal((N,), 7.0, 0.5) - 7.0, 0.5)
    assert normal((3,), 7.0, 0.0).tolist() == [7, 7, 7]


def test_the_defaults_of_a_linear_layer_are_at_hand():
    torch.manual_seed(1)
    layer = nn.Linear(64, 32)
    torch.manual_seed(1)
    weight = kaiming_uniform((32, 64), fan_in=64, a=math.sqrt(5))
    bias = uniform_bias(64, (32,))
    torch.testing.assert_close(layer.weight.detach(), weight)
    torch.testing.assert_close(layer.bias.detach(), bias)


# --- Truncated normal ---------------------------------------------------------------------------


def test_deviations_cut_off_stay_within_two():
    values = trunc_normal((N,), 3, 0.5, -2, 2)
    assert values.min().item() < 2.001
    assert values.max().item() > 3.999


@pytest.mark.case("runtime", 59)
def test_truncated_values_stay_within_bounds_given_in_deviations():
    values = trunc_normal((N,), 3, 0.5, -2, 2)
    assert values.min().item() >= 2
    assert values.max().item() <= 4
    assert values.mean().item() == pytest.approx(3, abs=0.005)


@pytest.mark.parametrize(
    ("a", "b"), [(-2, 2), (-0.5, 3), (1, 1.5), (-1.5, -1), (4, 6), (-9, -8), (8, 9)]
)
def test_a_truncated_normal_is_cut_and_not_clamped(a, b):
    values = (trunc_normal((N,), 3.0, 0.5, a, b).double() - 3.0) / 0.5
    assert a - 1e-6 <= values.min().item()
    assert values.max().item() <= b + 1e-6
    tail = -1 if a > 0 else 1  # small probabilities keep their digits on the left
    low, high = sorted((cdf(tail * a), cdf(tail * b)))
    assert_distributed(tail * values, lambda x: (cdf(x) - low) / (high - low))
    # Clamping would put a sixth or more of the values onto a bound of one deviation.
    at_bounds = ((values - a).abs() < 1e-6) | ((values - b).abs() < 1e-6)
    assert at_bounds.double().mean().item() < 1e-4


# --- Orthogonal ---------------------------------------------------------------------------------


@pytest.mark.case("runtime", 59)
def test_the_rows_of_a_wide_matrix_are_orthonormal():
    q = orthogonal((4, 6))
    torch.testing.assert_close(q @ q.T, torch.eye(4))


def test_the_columns_of_a_tall_matrix_are_orthonormal_times_the_gain():
    q = orthogonal((6, 4), gain=3.0)
    torch.testing.assert_close(q.T @ q, 9 * torch.eye(4))
    square = orthogonal((5, 5), gain=0.5)
    torch.testing.assert_close(square @ square.T, 0.25 * torch.eye(5))
    torch.testing.assert_close(square.T @ square, 0.25 * torch.eye(5))


def test_orthogonal_matrices_point_everywhere():
    """The first element of a random rotation in the plane is a cosine: arcsine distributed."""
    firsts = torch.stack([orthogonal((2, 2))[0, 0] for _ in range(2000)])
    ordered = firsts.double().sort().values
    expected = 1 - ordered.clamp(-1, 1).acos() / math.pi
    observed = torch.arange(2000) / 2000
    assert (expected - observed).abs().max().item() < 1.95 / math.sqrt(2000)


@each_row("shape", [(4,), (2, 3, 4), ()])
def test_orthogonal_makes_matrices_only(shape):
    with pytest.raises(ValueError, match="two dimensions"):
        orthogonal(shape)


# --- All of them --------------------------------------------------------------------------------

ALL = {
    "kaiming_uniform": lambda shape, **kw: kaiming_uniform(shape, 4, **kw),
    "kaiming_normal": lambda shape, **kw: kaiming_normal(shape, 4, **kw),
    "xavier_uniform": lambda shape, **kw: xavier_uniform(shape, 4, 5, **kw),
    "xavier_normal": lambda shape, **kw: xavier_normal(shape, 4, 5, **kw),
    "uniform": lambda shape, **kw: uniform(shape, -1, 1, **kw),
    "normal": lambda shape, **kw: normal(shape, 0, 1, **kw),
    "uniform_bias": lambda shape, **kw: uniform_bias(4, shape, **kw),
    "orthogonal": orthogonal,
    "trunc_normal": trunc_normal,
}


def test_the_device_is_given_by_position_too():
    assert kaiming_uniform((2, 3), 3, 0.0, "meta").is_meta
    assert xavier_normal((2, 3), 3, 2, torch.device("meta")).is_meta
    assert trunc_normal((2, 3), 0.0, 1.0, -2.0, 2.0, "meta").is_meta


@each_row("make", ALL.values(), ids=ALL)
def test_starting_values_are_float32_and_repeatable(make):
    torch.manual_seed(42)
    torch.set_default_dtype(torch.float64)
    try:
        values = make([3, 5])
    finally:
        torch.set_default_dtype(torch.float32)
    assert (values.dtype, values.shape) == (torch.float32, (3, 5))
    assert not values.requires_grad
    assert nn.Parameter(values).is_leaf
    torch.manual_seed(42)
    assert torch.equal(make(torch.Size((3, 5))), values)
    assert not torch.equal(make((3, 5)), values)


@each_row("make", ALL.values(), ids=ALL)
def test_a_generator_of_ones_own_leaves_the_global_one_alone(make):
    before = torch.get_rng_state()
    one, two = (make((3, 5), generator=torch.Generator().manual_seed(9)) for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(torch.get_rng_state(), before)
    assert make((3, 5), device="meta").is_meta


@each_row(
    ("make", "complaint"),
    [
        (lambda: kaiming_uniform((2,), 0), "fan_in must be at least 1, got 0"),
        (lambda: kaiming_normal((2,), -1), "fan_in"),
        (lambda: xavier_uniform((2,), 3, 0), "fan_out"),
        (lambda: xavier_normal((2,), 0, 3), "fan_in"),
        (lambda: uniform_bias(0, (2,)), "fan_in"),
        (lambda: uniform((2,), 1, 0), "in this order"),
        (lambda: uniform((2,), 0, math.inf), "finite"),
        (lambda: normal((2,), 0, -1), "std"),
        (lambda: normal((2,), math.nan, 1), "mean"),
        (lambda: trunc_normal((2,), 0, 1, 2, 2), "a and b"),
        (lambda: trunc_normal((2,), 0, 1, 2, math.inf), "a and b"),
        (lambda: trunc_normal((2,), 0, 1, 50, 51), "no probability"),
        (lambda: trunc_normal((2,), 0, -1), "std"),
    ],
)
def test_impossible_arguments_are_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()
