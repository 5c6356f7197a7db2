"""``torch.func``: a graph as a function of its parameters, differentiated and vectorised."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

from tests.flodl.ecosystem.networks import (
    assert_same,
    make_branching,
    mixture,
    mixture_inputs,
    outcome,
    recurrent,
)
from tests.rows import each_row


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@each_row(
    ("make", "inputs"),
    [
        (mixture, mixture_inputs()),
        (make_branching, (torch.randn(5, 8),)),
        (recurrent, (torch.randn(5, 8),)),
    ],
    ids=["mixture", "branching", "recurrent"],
)
def test_functional_call_uses_the_parameters_it_is_given(make, inputs):
    graph, other = make(), make()
    kept = {name: parameter.detach().clone() for name, parameter in graph.named_parameters()}
    torch.testing.assert_close(
        functional_call(graph, dict(other.named_parameters()), inputs), other(*inputs)
    )
    assert_same({name: p.detach() for name, p in graph.named_parameters()}, kept)


def test_grad_of_a_functional_call_is_the_gradient_of_backward():
    graph, inputs = mixture(), mixture_inputs()
    parameters = {name: p.detach() for name, p in graph.named_parameters()}

    def loss(values, *given):
        output = functional_call(graph, values, given)
        return (output * torch.linspace(0.5, 1.5, output.numel()).view_as(output)).sum()

    expected = outcome(graph, inputs)
    assert_same(grad(loss)(parameters, *inputs), {name: expected[name] for name in parameters})


def test_gradients_per_sample_sum_to_the_gradient_of_the_batch():
    graph, (x, context) = mixture(), mixture_inputs(4)
    parameters = {name: p.detach() for name, p in graph.named_parameters()}

    def loss(values, one, its_context):
        return functional_call(graph, values, (one[None], its_context[None])).square().sum()

    each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, context)
    graph(x, context).square().sum().backward()
    expected = {name: p.grad for name, p in graph.named_parameters()}
    assert_same({name: gradients.sum(0) for name, gradients in each.items()}, expected)


def test_an_ensemble_of_graphs_runs_as_one():
    graphs, inputs = [mixture() for _ in range(3)], mixture_inputs()
    parameters, buffers = stack_module_state(graphs)
    outputs = vmap(lambda p, b: functional_call(graphs[0], (p, b), inputs))(parameters, buffers)
    expected = torch.stack([graph(*inputs) for graph in graphs])
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
