"""Histograms against NumPy's, on the CPU and as a GPU would count them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from flodl.monitor.media.histograms import Reader, _count_on_device, histogram_of, histograms_of
from tests.rows import each_row


def third(values: torch.Tensor, bins: int = 64) -> Reader:
    """Count values together with those of other tensors."""
    others = [(torch.arange(7.0), 2.0), (torch.randn(20_000), 1.0)]
    return histograms_of([*others, (values, 1.0), others[0]], bins)[2]


# The counting of a GPU, on tensors of the CPU: the same operations in the same order.
WAYS = [
    pytest.param(histogram_of, id="cpu"),
    pytest.param(third, id="together"),
    pytest.param(lambda values, bins=64: _count_on_device(values, bins, 1.0), id="device"),
]


@pytest.fixture(params=WAYS)
def count(request):
    return lambda values, bins=64: request.param(values, bins)()


@each_row("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@each_row("size", [1, 2, 1000, 200_001])
def test_counts_are_those_of_numpy(count, dtype, size):
    values = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
    made = count(values, 50)
    exact = values.double().numpy()
    if size > 1:
        assert (made.low, made.high) == (exact.min(), exact.max())
        expected, _ = np.histogram(exact, 50)
        # A value at the edge of two bins may fall to either side in float32.
        assert np.abs(np.cumsum(made.counts) - np.cumsum(expected)).max() <= max(1, size // 10_000)
    assert made.count == size
    assert made.mean == pytest.approx(exact.mean(), abs=1e-6)
    assert made.deviation == pytest.approx(exact.std(), abs=1e-5)
    edges = made.edges()
    assert (edges[0], edges[-1], len(edges)) == (made.low, made.high, 51)


def test_values_that_are_not_finite_are_counted_apart(count):
    inf, nan = math.inf, math.nan
    made = count(torch.tensor([[nan, 1.0, inf], [2.0, -inf, nan], [inf, 1.5, 4.0]]), 3)
    assert (made.nan, made.positive_infinite, made.negative_infinite) == (2, 2, 1)
    assert (made.low, made.high, made.counts) == (1.0, 4.0, (2, 1, 1))
    assert made.mean == pytest.approx(8.5 / 4)
    nothing = count(torch.tensor([nan, nan, -inf]), 3)
    assert (nothing.count, nothing.nan, nothing.negative_infinite) == (0, 2, 1)
    assert nothing.mean is None
    assert nothing.as_json()["std"] is None


@each_row("value", [0.0, -3.0, 1e30, 1e-30, -1e38])
def test_equal_values_lie_in_one_bin_of_a_wider_range(count, value):
    made = count(torch.full((7,), value), 5)
    assert made.counts == (0, 0, 7, 0, 0)
    assert made.low < value < made.high


@each_row("scale", [1e-38, 1e-20, 1e20, 3e38])
def test_very_large_and_very_small_ranges(count, scale):
    values = torch.tensor([-1.0, -0.4, 0.1, 0.9, 1.0]) * scale
    made = count(values, 4)
    assert made.counts == (1, 1, 1, 2)
    assert made.edges()[-1] == float(values[-1])
    assert "Infinity" not in str(made.as_json())


@each_row(
    "values",
    [
        torch.arange(12).reshape(3, 4).t(),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.tensor([True, False, True]),
        np.arange(5, dtype=np.int8),
        [1, 2, 3.5],
        torch.randn(3, requires_grad=True),
    ],
)
def test_every_kind_of_values(values):
    made = histogram_of(values, 4)()
    exact = np.asarray(values.detach() if isinstance(values, torch.Tensor) else values, float)
    assert made.count == exact.size
    assert (made.low, made.high) == (exact.min(), exact.max())


def test_gradients_of_a_scaled_loss_are_divided_by_the_scale():
    values = torch.tensor([-2.0, 4.0, 6.0])
    made = histogram_of(values * 1024, 4, scale=1024)()
    assert made == histogram_of(values, 4)()


def test_tensors_that_are_counted_together_keep_their_order_and_scale():
    tensors = [torch.randn(size).mul(size) for size in (1, 5, 9000, 300, 8192)]
    scales = [1.0, 2.0, 4.0, 0.5, 1024.0]
    made = histograms_of(list(zip(tensors, scales, strict=True)))
    for tensor, scale, reader in zip(tensors, scales, made, strict=True):
        alone, together = histogram_of(tensor, scale=scale)(), reader()
        assert together.counts == alone.counts
        assert (together.low, together.high) == (alone.low, alone.high)
        assert together.total == pytest.approx(alone.total)
        assert together.squares == pytest.approx(alone.squares)


@each_row(
    ("values", "bins", "says"),
    [
        (torch.zeros(0, 3), 64, r"shape \[0, 3\] has no values"),
        (torch.zeros(2, dtype=torch.complex64), 64, r"complex64 values with shape \[2\]"),
        (torch.zeros(2), 0, "bins=0: use 1 to 255"),
        (torch.zeros(2), 256, "bins=256"),
        (["a"], 64, "not an array of numbers"),
        ([[1, 2], [3]], 64, "it cannot be read as an array"),
    ],
)
def test_an_error_says_what_to_pass(values, bins, says):
    with pytest.raises(ValueError, match=says):
        histogram_of(values, bins)


def test_tensors_in_a_list_and_half_precision_arrays_are_counted():
    made = histogram_of([torch.tensor(1.0, requires_grad=True), 2.0, torch.tensor(4)], 3)()
    assert (made.low, made.high, made.counts) == (1.0, 4.0, (1, 1, 1))
    half = histogram_of(np.array([1.0, 2.0, 4.0], np.float16), 3)()
    assert half == made


def test_only_large_tensors_and_no_tensors_are_counted_too():
    assert histograms_of([]) == []
    [reader] = histograms_of([(torch.arange(100_000.0), 1.0)], 4)
    assert reader().counts == (25_000,) * 4
