"""Attached training: the optimizer, and the counters of steps and epochs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from flodl.graph import FlowBuilder


def network():
    return FlowBuilder.from_(nn.Linear(2, 2)).through(nn.Tanh()).tag("out").build()


def test_step_updates_the_weights_as_a_plain_loop_does():
    graph = network()
    twin = copy.deepcopy(graph)
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.1)
    graph.set_optimizer(lambda params: torch.optim.Adam(params, lr=0.1))
    for _ in range(3):
        x = torch.randn(4, 2)
        graph(x).square().sum().backward()
        graph.step()
        twin(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert graph.training_step == 3
    assert graph.step_count == 3
    assert all(p.grad is None for p in graph.parameters())
    for ours, theirs in zip(graph.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_copy_trains_its_own_weights():
    graph = network()
    graph.set_optimizer(lambda params: torch.optim.SGD(params, lr=0.1))
    copied = copy.deepcopy(graph)
    before = graph.linear_1.weight.clone()
    copied(torch.ones(1, 2)).sum().backward()
    copied.step()
    assert torch.equal(graph.linear_1.weight, before)
    assert not torch.equal(copied.linear_1.weight, before)


def test_step_counts_without_an_optimizer():
    graph = network()
    graph.step()
    assert graph.training_step == 1
    assert graph.step_count == 0  # no forward ran


def test_an_optimizer_that_leaves_parameters_out_is_reported():
    graph = network()
    with pytest.warns(UserWarning, match=r"1 trainable parameter\(s\).*: linear_1\.weight;"):
        graph.set_optimizer(lambda params: torch.optim.SGD(params[1:], lr=0.1))


def test_a_factory_that_returns_no_optimizer_is_refused():
    with pytest.raises(ValueError, match="returned NoneType"):
        network().set_optimizer(lambda _: None)


def test_end_step_counts_only_when_a_forward_ran():
    graph = network()
    graph.end_step()
    for _ in range(3):
        graph(torch.ones(1, 2))
        graph.end_step()
    graph.end_step()
    assert (graph.step_count, graph.epoch_step, graph.epoch_count) == (3, 3, 0)
    graph.record_scalar("loss", 2.0)
    graph.end_epoch()
    assert (graph.step_count, graph.epoch_step, graph.epoch_count) == (3, 0, 1)
    assert graph.latest_metrics() == [("loss", 2.0)]


def test_end_step_cuts_the_autograd_graph_and_reaches_nested_graphs():
    class Memory(nn.Identity):
        detached = 0

        def detach_state(self):
            self.detached += 1

    memory = Memory()
    inner = FlowBuilder.from_(nn.Linear(2, 2)).tag("h").through(memory).build()
    outer = FlowBuilder.from_(nn.Sequential(inner, inner)).tag("out").build()
    outer(torch.ones(1, 2))
    value = outer.tagged("out").clone()
    assert inner.tagged("h").requires_grad
    outer.end_step()
    assert torch.equal(outer.tagged("out"), value)
    assert not outer.tagged("out").requires_grad
    assert not inner.tagged("h").requires_grad
    assert (outer.step_count, inner.step_count) == (1, 1)
    assert memory.detached == 1
