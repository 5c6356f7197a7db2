"""``torch.compile`` takes a graph as one piece; gradients are those of the eager graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from flodl.torch_features import DIFFERENTIATES_LOOPS
from tests.flodl.ecosystem.networks import (
    assert_same,
    make_branching,
    mixture,
    mixture_inputs,
    outcome,
    recurrent,
)

# Torch looks at `.grad` of carried state while it traces, and inductor uses what torch deprecates.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.manual_seed(0)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stateless_graph_compiles_as_one_piece_for_any_batch_tags_included(backend):
    graph = mixture()
    assert graph.capturable, graph.capturable.reasons
    compiled = torch.compile(graph, fullgraph=True, dynamic=True, backend=backend)
    for batch in (5, 2, 9):
        inputs = mixture_inputs(batch)
        with torch.compiler.set_stance("default" if batch == 5 else "fail_on_recompile"):
            seen = outcome(compiled, inputs)
        seen["tag"] = graph.tagged("mixed")
        expected = outcome(graph, inputs)
        assert_same(seen, {**expected, "tag": graph.tagged("mixed")})


@pytest.mark.slow
@pytest.mark.skipif(not DIFFERENTIATES_LOOPS, reason="this torch cannot differentiate a loop")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "batch", [pytest.param(False, marks=pytest.mark.slow), True], ids=["rows", "batch"]
)
def test_a_switch_and_a_conditional_loop_compile_as_one_piece(batch, backend):
    graph = make_branching(batch)
    assert graph.capturable, graph.capturable.reasons
    compiled = torch.compile(graph, fullgraph=True, backend=backend)
    iterations, branches = set(), set()
    for scale in (1.0, -1.0, 0.02, 50.0):
        inputs = (scale * torch.randn(5, 8),)
        expected = outcome(graph, inputs)
        iterations.add(len(graph.traces("loop_3/halt") or []))
        branches.update(name for name in expected if name.startswith("chosen.branches"))
        seen = outcome(compiled, inputs)
        # What ran for no row: no gradient in eager mode, zeros of a compiled graph.
        for name in seen.keys() - expected.keys():
            assert name.startswith(("chosen.branches.", "grow.")), name
            assert not seen.pop(name).any()
        assert_same(seen, expected)
    assert len(iterations) > 1
    assert {name.split(".")[2] for name in branches} == {"0", "1"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_core_carries_state_like_the_eager_graph(backend):
    eager, compiled = recurrent(), recurrent()
    compiled.load_state_dict(eager.state_dict())
    compiled.compile(fullgraph=True, backend=backend)
    assert "memory" in "".join(eager.capturable.reasons)
    for graph in (eager, compiled):
        torch.manual_seed(1)
        graph.seen = []
        for _ in range(3):  # each a window of two calls, and a backward through both
            inputs = torch.randn(2, 5, 8)
            graph.zero_grad()
            (graph(inputs[0]) + graph(inputs[1]).square()).sum().backward()
            graph.seen.append({name: p.grad.clone() for name, p in graph.named_parameters()})
    for seen, expected in zip(compiled.seen, eager.seen, strict=True):
        assert_same(seen, expected)
    torch.testing.assert_close(compiled.tagged("memory"), eager.tagged("memory"))


def test_a_stateful_graph_compiled_with_its_shell_behaves_as_with_manual_policy():
    eager, graph = recurrent(), recurrent()
    graph.load_state_dict(eager.state_dict())
    compiled = torch.compile(graph, backend="aot_eager")
    for _ in range(3):
        inputs = (torch.randn(5, 8),)
        assert_same(outcome(compiled, inputs), outcome(eager, inputs))
        graph.detach_state()
        eager.detach_state()


@pytest.mark.skipif(not DIFFERENTIATES_LOOPS, reason="this torch cannot differentiate a loop")
def test_a_graph_compiles_as_a_part_of_another_module():
    model = nn.Sequential(nn.Linear(4, 8), make_branching(), nn.Tanh())
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    x = torch.randn(5, 4)
    torch.testing.assert_close(compiled(x), model(x))
