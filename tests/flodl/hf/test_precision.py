"""What stays in float32 inside the operations of a model in bfloat16."""

import pytest
import torch
from torch.nn import functional

ULP = 2.0**-8
"""Rounding a number to bfloat16 changes it by at most half of this part."""


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).bfloat16()


def rounded_once(found: torch.Tensor, exact: torch.Tensor) -> None:
    """The result is that of float32, rounded at the end."""
    assert found.dtype == torch.bfloat16
    assert (found.float() - exact).abs().le(ULP * exact.abs() + 1e-6).all()


def test_layer_norm_computes_its_statistics_in_float32():
    values, weight, bias = drawn(8, 768) * 3 + 100, drawn(768), drawn(768)
    exact = functional.layer_norm(values.float(), (768,), weight.float(), bias.float(), 1e-12)
    found = functional.layer_norm(values, (768,), weight, bias, 1e-12)
    assert (found.float() - exact).abs().max() <= ULP * exact.abs().max()


def test_softmax_and_gelu_compute_in_float32():
    values = drawn(8, 512) * 4
    rounded_once(values.softmax(-1), values.float().softmax(-1))
    assert (functional.gelu(values).float() - functional.gelu(values.float())).abs().max() <= 0.05


@pytest.mark.parametrize("width", [64, 3072])
def test_products_are_summed_in_float32(width):
    values, weight = drawn(16, width), drawn(32, width)
    exact = functional.linear(values.float(), weight.float())
    found = functional.linear(values, weight)
    assert (found.float() - exact).abs().max() <= ULP * exact.abs().max()
