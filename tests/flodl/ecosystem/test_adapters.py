"""What replaces submodules in place: PEFT's LoRA, torch's parametrisations, the user."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from flodl import Graph
from tests.flodl.ecosystem.networks import (
    assert_same,
    make_branching,
    mixture,
    mixture_inputs,
    outcome,
)
from tests.rows import each_row

pytestmark = pytest.mark.slow

TARGETS = ["encoded.scan", "residual.0", "mixed.experts.1", "loop_6.body.0", "map_7", "head"]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def lora():
    from peft import LoraConfig

    return LoraConfig(r=2, lora_alpha=4, target_modules=TARGETS, init_lora_weights=True)


def train(graph: nn.Module, steps: int = 5) -> None:
    trainable = [p for p in graph.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=0.1)
    inputs = mixture_inputs()
    for _ in range(steps):
        graph(*inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_lora_layers_injected_by_peft_take_effect(lora):
    from peft import inject_adapter_in_model
    from peft.tuners.lora import LoraLayer

    graph, inputs = mixture(), mixture_inputs()
    expected = graph(*inputs)
    base = {name: p.detach().clone() for name, p in graph.named_parameters()}
    assert inject_adapter_in_model(lora, graph) is graph
    adapted = {name for name, m in graph.named_modules() if isinstance(m, LoraLayer)}
    assert adapted == set(TARGETS)
    torch.testing.assert_close(graph(*inputs), expected)  # an adapter begins as zero

    train(graph)
    assert not torch.allclose(graph(*inputs), expected)
    for name, parameter in graph.named_parameters():
        if "lora_" in name:
            assert parameter.requires_grad
        else:
            assert torch.equal(parameter, base[name.replace("base_layer.", "")])


def test_a_peft_model_around_a_graph_merges_back_into_it(lora):
    from peft import get_peft_model

    graph, inputs = mixture(), mixture_inputs()
    names = [name for name, _ in graph.named_parameters()]
    wrapped = get_peft_model(graph, lora)
    train(wrapped)
    adapted = wrapped(*inputs)
    merged = wrapped.merge_and_unload()
    assert isinstance(merged, Graph)
    assert [name for name, _ in merged.named_parameters()] == names
    torch.testing.assert_close(merged(*inputs), adapted, rtol=1e-4, atol=1e-5)


def test_a_parametrised_node_module_takes_effect_and_comes_off_again():
    graph, inputs = mixture(), mixture_inputs()
    expected = outcome(graph, inputs)
    weight_norm(graph.get_submodule("head"))
    torch.testing.assert_close(graph(*inputs).detach(), expected["output"])
    assert "head.parametrizations.weight.original0" in graph.state_dict()
    with torch.no_grad():
        graph.get_parameter("head.parametrizations.weight.original0").mul_(2)
    assert not torch.allclose(graph(*inputs), expected["output"])
    with torch.no_grad():
        graph.get_parameter("head.parametrizations.weight.original0").div_(2)
    parametrize.remove_parametrizations(graph.get_submodule("head"), "weight")
    assert_same(outcome(graph, inputs), expected)


@each_row("path", ["chosen.branches.0", "chosen.branches.1", "grow.body", "head"])
def test_a_replaced_part_of_a_composite_takes_effect(path):
    class Counted(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.calls = inner, 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.inner(x)

    graph = make_branching()
    inputs = [scale * torch.randn(5, 8) for scale in (1.0, -1.0, 0.02, 50.0)]
    expected = [graph(x) for x in inputs]
    counted = Counted(graph.get_submodule(path))
    graph.set_submodule(path, counted)
    for x, value in zip(inputs, expected, strict=True):
        torch.testing.assert_close(graph(x), value)
    assert counted.calls > 0
