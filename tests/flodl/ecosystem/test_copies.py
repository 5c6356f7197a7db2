"""Copies and state dicts: ``deepcopy``, pickle, ``load_state_dict``, averaged models."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.flodl.ecosystem.networks import (
    assert_same,
    make_branching,
    mixture,
    mixture_inputs,
    outcome,
    recurrent,
)
from tests.rows import each_row

GRAPHS = {
    "mixture": (mixture, mixture_inputs),
    "branching": (make_branching, lambda: (torch.randn(5, 8),)),
    "recurrent": (recurrent, lambda: (torch.randn(5, 8),)),
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@each_row("kind", GRAPHS)
@each_row(
    "duplicate", [copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))],
    ids=["deepcopy", "pickle"],
)  # fmt: skip
def test_a_copy_computes_the_same_and_stands_alone(kind, duplicate):
    make, make_inputs = GRAPHS[kind]
    graph, inputs = make(), make_inputs()
    graph(*inputs).sum().backward()  # a copy in the middle of a training
    graph(*inputs)
    twin = duplicate(graph)
    graph.reset_state()
    assert_same(outcome(twin, inputs), outcome(graph, inputs))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin(*inputs).any()
    assert graph(*inputs).any()


def test_a_copy_of_a_compiled_graph_runs_eagerly_and_alike():
    graph = mixture()
    inputs = mixture_inputs()
    graph.compile(backend="eager")
    expected = graph(*inputs)
    torch.testing.assert_close(copy.deepcopy(graph)(*inputs), expected)
    torch.compiler.reset()


@each_row("kind", GRAPHS)
def test_a_state_dict_fits_another_graph_strictly(kind):
    make, make_inputs = GRAPHS[kind]
    graph, other, inputs = make(), make(), make_inputs()
    graph(*inputs)  # what a forward leaves behind is not part of the state dict
    state = graph.state_dict()
    assert set(state) == {name for name, _ in graph.named_parameters()}
    assert not torch.equal(other(*inputs), graph(*inputs))
    graph.reset_state()
    other.reset_state()
    assert str(other.load_state_dict(state)) == "<All keys matched successfully>"
    assert_same(outcome(other, inputs), outcome(graph, inputs))


def test_a_state_dict_can_be_assigned_to_a_graph_without_memory():
    graph = mixture()
    with torch.device("meta"):
        hollow = mixture()
    hollow.load_state_dict(graph.state_dict(), assign=True)
    inputs = mixture_inputs()
    assert_same(outcome(hollow, inputs), outcome(graph, inputs))


def test_a_missing_key_is_reported_under_the_prefix_of_the_parent():
    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mixture()

    state = Parent().state_dict()
    assert "body.encoded.scan.weight" in state
    del state["body.encoded.scan.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*body\.encoded\.scan\.weight"):
        Parent().load_state_dict(state)


def test_an_averaged_model_follows_a_graph():
    graph = mixture()
    average = AveragedModel(graph, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    average.update_parameters(graph)
    before = graph.get_parameter("head.bias").detach().clone()
    with torch.no_grad():
        graph.get_parameter("head.bias").add_(1)
    average.update_parameters(graph)
    torch.testing.assert_close(average.module.get_parameter("head.bias").detach(), before + 0.5)
    inputs = mixture_inputs()
    torch.testing.assert_close(average(*inputs), graph(*inputs) - 0.5)
