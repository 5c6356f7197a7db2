"""Activation functions: the reference's values under the reference's names."""

from __future__ import annotations

import pytest
import torch

from flodl.hf.errors import ConfigError
from flodl.hf.layers.activations import ACTIVATIONS
from tests.flodl.hf.models_material import small_config
from tests.rows import each_row

GELUS = (
    "gelu",
    "gelu_python",
    "gelu_new",
    "gelu_pytorch_tanh",
    "gelu_python_tanh",
    "gelu_fast",
    "gelu_accurate",
    "gelu_10",
    "quick_gelu",
)
OTHERS = (
    "relu",
    "relu2",
    "relu6",
    "silu",
    "swish",
    "mish",
    "tanh",
    "sigmoid",
    "hardswish",
    "leaky_relu",
    "linear",
)


def inputs():
    generator = torch.Generator().manual_seed(0)
    return torch.cat(
        [torch.linspace(-14, 14, 5001), 3 * torch.randn(5000, generator=generator), torch.zeros(1)]
    )


def test_the_names_are_exactly_these():
    assert sorted(ACTIVATIONS) == sorted(GELUS + OTHERS)


@each_row("name", GELUS + OTHERS)
@each_row("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_activation_gives_the_references_values_and_gradients(name, dtype):
    ours = inputs().to(dtype).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    before = ours.detach().clone()

    # A fused kernel and the steps of the name round differently.
    fused = dtype == torch.float32 and name.startswith("gelu_")
    tolerance = 2e-6 if fused else 1e-7

    # Here, because it takes seconds that every collection of the tests would need.
    from transformers.activations import ACT2FN

    found, expected = ACTIVATIONS[name](ours), ACT2FN[name](theirs)
    found.sum().backward()
    expected.sum().backward()

    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=tolerance)
    assert torch.equal(ours.detach(), before)


def test_the_exact_and_the_tanh_form_are_two_functions():
    x = inputs()
    assert (ACTIVATIONS["gelu"](x) - ACTIVATIONS["gelu_new"](x)).abs().max() > 4e-4


def test_gelu_10_stops_at_ten():
    assert ACTIVATIONS["gelu_10"](torch.tensor([14.0, 3.0])).tolist() == pytest.approx(
        [10.0, 2.99595031]
    )


@each_row("name", ["GELU", "Relu", "gelu ", "", "laplace", "prelu"])
def test_an_unknown_name_is_refused_with_all_known_ones(name):
    with pytest.raises(ConfigError, match="hidden_act") as caught:
        small_config("bert", hidden_act=name)
    assert repr(name) in str(caught.value)
    assert ", ".join(ACTIVATIONS) in str(caught.value)
