"""Gradients through state: when the chain of calls is cut, by whom, and what warns of it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from flodl.errors import StateError
from flodl.graph import FlowBuilder
from flodl.graph.modules import LoopBody
from flodl.graph.routing import StateAdd
from tests.rows import each_row

from .layers import Bias, column, memory, start


def biased_sum(policy="auto"):
    """y = x + b + the last y, with a learned b."""
    graph = memory(FlowBuilder.from_(Bias())).build()
    graph.state_policy = policy
    return graph


def bias_gradient(graph):
    return graph.bias_1.b.grad.item()


def clear_gradients(graph):
    graph.zero_grad(set_to_none=True)


# --- Gradients, policy "auto" -------------------------------------------------------------------


@pytest.mark.case("runtime", 9)
def test_a_backward_cuts_the_state_and_forwards_before_it_do_not():
    graph = biased_sum()
    assert graph.state_policy == "auto"
    gradients = []
    for _ in range(3):
        graph(column(0)).sum().backward()
        gradients.append(bias_gradient(graph))
        clear_gradients(graph)
    assert gradients == [1, 1, 1]

    graph.reset_state()
    graph(column(0))
    graph(column(0)).sum().backward()
    assert bias_gradient(graph) == 2


def test_the_value_of_the_state_survives_the_cut():
    graph = biased_sum()
    values = []
    for _ in range(3):
        y = graph(column(1))
        y.sum().backward()
        values.append(y.item())
    assert values == [1, 2, 3]


def test_a_loss_on_a_tag_counts_as_a_backward():
    graph = FlowBuilder.from_(Bias()).tag("early").through(StateAdd()).using("m").tag("m").build()
    graph(column(0))
    graph.tagged("early").sum().backward()
    clear_gradients(graph)
    graph(column(0)).sum().backward()
    assert graph.early.b.grad.item() == 1


def test_a_backward_counts_although_no_tags_are_captured():
    graph = biased_sum()
    graph.observe(False)
    for _ in range(3):
        clear_gradients(graph)
        graph(column(0)).sum().backward()
        assert bias_gradient(graph) == 1


def test_a_loss_on_a_trace_counts_as_a_backward():
    class Body(LoopBody):
        def step(self, x, _, emit):
            emit.publish("state", x.tanh())
            return x.tanh()

    builder = FlowBuilder.from_(Bias()).through(StateAdd()).using("m").loop_body(Body()).for_n(2)
    graph = builder.tag("m").build()
    gradients = []
    for _ in range(3):
        clear_gradients(graph)
        graph.reset_state()
        graph(column(0))
        graph.traces("state")[0].sum().backward()
        gradients.append(bias_gradient(graph))
        graph(column(0))  # would run into the history the backward has freed
        graph.traces("state")[0].sum().backward()
    assert gradients == [1, 1, 1]


def test_gradients_asked_for_by_hand_count_as_well():
    graph = memory(FlowBuilder.from_(Bias()).through(nn.Tanh())).build()
    parameters = list(graph.parameters())
    gradients = []
    for _ in range(3):
        y = graph(column(0))
        gradients.append(torch.autograd.grad(y.sum(), parameters)[0].item())
    assert gradients == [1, 1, 1]


def test_the_gradient_itself_is_not_changed_by_watching_it():
    graph, twin = biased_sum(), biased_sum("manual")
    for network in (graph, twin):
        (network(column(3)) ** 2).sum().backward()
    assert bias_gradient(graph) == bias_gradient(twin) == 6


def test_a_recurrent_network_trains_without_any_housekeeping():
    torch.manual_seed(0)
    graph = FlowBuilder.from_(nn.Linear(1, 4)).through(StateAdd()).using("h").through(nn.Tanh())
    graph = graph.through(nn.Linear(4, 4)).tag("h").through(nn.Linear(4, 1)).build()
    optimizer = torch.optim.Adam(graph.parameters(), lr=0.05)
    losses = []
    for step in range(60):
        # The target is the previous input: only the state can know it.
        sequence = torch.randint(0, 2, (6, 16, 1)).float()
        graph.reset_state()
        outputs = [graph(x) for x in sequence]
        loss = sum((y - x).square().mean() for y, x in zip(outputs[1:], sequence, strict=False))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step in (0, 59):
            losses.append(loss.item())
    assert losses[1] < losses[0] / 2


def test_several_forwards_and_a_backward_are_truncated_at_the_last_backward():
    graph = biased_sum()
    graph(column(0))
    graph(column(0)).sum().backward()
    clear_gradients(graph)
    graph(column(0))
    graph(column(0))
    graph(column(0)).sum().backward()
    assert bias_gradient(graph) == 3


def test_validation_between_forward_and_backward_cuts_only_what_it_computed():
    graph = biased_sum()
    y = graph(column(0))
    with torch.no_grad():
        graph(column(0))
    y.sum().backward()
    assert bias_gradient(graph) == 1
    clear_gradients(graph)
    graph(column(0)).sum().backward()
    assert bias_gradient(graph) == 1


def test_detaching_by_hand_keeps_the_value_and_cuts_the_gradient():
    graph = biased_sum()
    graph(column(1))
    graph.detach_state()
    y = graph(column(1))
    assert y.item() == 2
    y.sum().backward()
    assert bias_gradient(graph) == 1


def test_detach_reaches_tags_traces_modules_and_nested_graphs():
    class Stateful(nn.Identity):
        detached = 0

        def detach_state(self):
            self.detached += 1

    class Traced(nn.Linear):
        def trace(self):
            return self.weight * 2

    stateful = Stateful()
    inner = memory(FlowBuilder.from_(Bias())).through(stateful).build()
    body = Traced(1, 1)
    graph = FlowBuilder.from_(inner).tag("t").loop_body(body).for_n(2).tag("loop").build()
    graph(column(0))
    assert graph.tagged("t").requires_grad
    assert graph.traces("loop")[0].requires_grad
    graph.detach_state()
    assert not graph.tagged("t").requires_grad
    assert not any(value.requires_grad for value in graph.traces("loop"))
    assert not inner.tagged("m").requires_grad
    assert stateful.detached == 1
    graph(column(0)).sum().backward()
    # Two iterations multiply by the weight each; the inner memory was cut after the first call.
    assert inner.bias_1.b.grad.item() == pytest.approx(body.weight.item() ** 2)


def test_the_watch_does_not_keep_the_graph_alive():
    graph = biased_sum()
    y = graph(column(0))
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None
    y.sum().backward()


# --- Gradients, policy "manual" -----------------------------------------------------------------


@pytest.mark.case("runtime", 10)
def test_manually_an_undetached_state_is_refused_after_a_backward():
    graph = biased_sum("manual")
    graph(column(0)).sum().backward()
    with pytest.raises(StateError, match="'m'") as caught:
        graph(column(0))
    assert "end_step" in str(caught.value) or "detach_state" in str(caught.value)


@each_row("cut", ["end_step", "detach_state", "reset_state"])
def test_manually_each_way_of_cutting_allows_the_next_forward(cut):
    graph = biased_sum("manual")
    for _ in range(3):
        clear_gradients(graph)
        graph(column(0)).sum().backward()
        getattr(graph, cut)()
        assert bias_gradient(graph) == 1
    graph(column(0)).sum().backward()
    assert bias_gradient(graph) == 2


def test_manually_forwards_without_a_backward_chain():
    graph = biased_sum("manual")
    graph(column(0))
    graph(column(0))
    graph(column(0)).sum().backward()
    assert bias_gradient(graph) == 3


def test_an_unknown_policy_is_refused():
    graph = memory(start()).build()
    with pytest.raises(ValueError, match="sometimes"):
        graph.state_policy = "sometimes"
    assert graph.state_policy == "auto"


# --- Chains that never end ----------------------------------------------------------------------


@each_row("policy", ["auto", "manual"])
def test_a_chain_of_256_forwards_is_reported_once(policy):
    graph = biased_sum(policy)
    for _ in range(255):
        graph(column(0))
    with pytest.warns(UserWarning, match="256"):
        graph(column(0))
    for _ in range(300):
        graph(column(0))


@each_row("policy", ["auto", "manual"])
def test_a_backward_or_a_detach_starts_the_chain_anew(policy):
    graph = biased_sum(policy)
    for _ in range(3):
        for _ in range(199):
            graph(column(0))
        graph(column(0)).sum().backward()
        graph.detach_state()
    for _ in range(200):
        graph(column(0))
    graph.detach_state()
    for _ in range(200):
        graph(column(0))


def test_inference_and_graphs_without_state_are_no_chains():
    graph, stateless = biased_sum(), FlowBuilder.from_(Bias()).build()
    for _ in range(300):
        stateless(column(0))
        with torch.no_grad():
            graph(column(0))
