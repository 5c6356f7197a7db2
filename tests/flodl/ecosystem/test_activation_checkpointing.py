"""Activation checkpointing recomputes a stateless graph; a stateful one refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from flodl import FlowBuilder, StateError
from tests.flodl.ecosystem.networks import (
    WIDTH,
    assert_same,
    make_branching,
    mixture,
    mixture_inputs,
    outcome,
    recurrent,
)


class Recomputed(nn.Module):
    """Forgets what happens inside and computes it again for the backward."""

    def __init__(self, inner: nn.Module, *, reentrant: bool) -> None:
        super().__init__()
        self.inner = inner
        self.reentrant = reentrant

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, *inputs, use_reentrant=self.reentrant)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    ("make", "inputs"),
    [(mixture, mixture_inputs()), (make_branching, (torch.randn(5, 8),))],
    ids=["mixture", "branching"],
)
def test_a_stateless_graph_gives_the_same_gradients(make, inputs, reentrant):
    graph = make()
    runs = []
    graph.register_forward_pre_hook(lambda *_: runs.append(1))
    seen = outcome(Recomputed(graph, reentrant=reentrant), inputs)
    assert len(runs) == 2  # it was indeed computed twice
    seen = {name.removeprefix("inner."): value for name, value in seen.items()}
    assert_same(seen, outcome(graph, inputs))


def test_segments_of_a_chain_of_graphs():
    chain = nn.Sequential(*(make_branching() for _ in range(4)))
    x = torch.randn(5, 8)
    expected = outcome(chain, (x,))
    given = x.clone().requires_grad_()
    chain.zero_grad()
    output = checkpoint_sequential(chain, 2, given, use_reentrant=False)
    torch.testing.assert_close(output.detach(), expected["output"])


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_stateful_graph_is_refused_when_it_would_advance_twice(reentrant):
    graph = recurrent()
    output = Recomputed(graph, reentrant=reentrant)(torch.randn(5, 8, requires_grad=True))
    with pytest.raises(StateError, match="checkpoint"):
        output.sum().backward()


def test_a_module_inside_a_stateful_graph_may_be_checkpointed():
    def build(heavy: nn.Module):
        reader = recurrent()
        return FlowBuilder.from_(nn.Linear(8, 8)).through(heavy).through(reader).build()

    heavy = nn.Sequential(nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8))
    plain = build(heavy)
    graph = build(Recomputed(heavy, reentrant=False))
    graph.load_state_dict(
        {
            name.replace("sequential_2.", "recomputed_2.inner."): value
            for name, value in plain.state_dict().items()
        }
    )
    for _ in range(3):
        inputs = (torch.randn(5, 8),)
        seen, expected = outcome(graph, inputs), outcome(plain, inputs)
        renamed = {n.replace("recomputed_2.inner.", "sequential_2."): v for n, v in seen.items()}
        assert_same(renamed, expected)
