"""``torch.export`` and ONNX: a graph leaves Python, and another runtime gives the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from flodl import ArgmaxSelector, FlowBuilder, StateError
from tests.flodl.ecosystem.networks import (
    make_branching,
    mixture,
    mixture_inputs,
    recurrent,
)
from tests.rows import each_row

# Torch's exporter deprecates a class that it still copies, and looks at `.grad` while it traces.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

# A graph takes its inputs as *inputs: one tuple for all of them.
DYNAMIC = (({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}),)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_an_exported_graph_computes_the_same_for_any_batch():
    graph = mixture()
    program = export(graph, mixture_inputs(), dynamic_shapes=DYNAMIC)
    for batch in (5, 2, 9):
        inputs = mixture_inputs(batch)
        torch.testing.assert_close(program.module()(*inputs), graph(*inputs))
    # Parameters keep their names, so that a checkpoint of the graph fits the program.
    assert set(program.state_dict) == set(graph.state_dict())


def test_an_exported_program_survives_a_file(tmp_path: Path):
    graph = mixture()
    inputs = mixture_inputs()
    torch.export.save(export(graph, inputs), tmp_path / "graph.pt2")
    loaded = torch.export.load(tmp_path / "graph.pt2")
    torch.testing.assert_close(loaded.module()(*inputs), graph(*inputs))


def test_an_exported_switch_sends_each_row_of_any_batch_to_its_branch():
    router, branches = ArgmaxSelector(4, 2), [nn.Tanh(), nn.Linear(4, 4)]
    graph = FlowBuilder.from_(nn.Linear(8, 4)).switch(router, branches).build()
    program = export(graph, (torch.randn(5, 8),), dynamic_shapes=(({0: Dim.DYNAMIC},),))
    for batch in (5, 2, 9):
        x = torch.randn(batch, 8)
        torch.testing.assert_close(program.module()(x), graph(x))


@each_row("batch", [False, True])
def test_control_flow_is_exported_as_control_flow(batch):
    graph = make_branching(batch)
    program = export(graph, (torch.randn(5, 8),))
    operators = [str(node.target) for node in program.graph.nodes]
    # A switch of rows runs all its branches there and keeps one for each row.
    assert sum(operator in ("cond", "while_loop") for operator in operators) >= 1 + batch
    for scale in (1.0, -1.0, 0.02, 50.0):
        x = scale * torch.randn(5, 8)
        torch.testing.assert_close(program.module()(x), graph(x))


def test_exporting_leaves_nothing_behind_in_the_graph():
    graph = mixture()
    inputs = mixture_inputs()
    expected = graph(*inputs)
    export(graph, inputs)
    assert type(graph.tagged("mixed")) in (torch.Tensor, type(None))
    torch.testing.assert_close(graph(*inputs), expected)
    graph.tagged("mixed").sum().backward()


def test_a_stateful_graph_is_refused():
    graph = recurrent()
    x = torch.randn(5, 8)
    expected = [graph(x).detach(), graph(x).detach()]
    graph.reset_state()
    with pytest.raises(StateError, match="memory"):
        export(graph, (x,))
    graph.reset_state()
    for value in expected:
        torch.testing.assert_close(graph(x), value)


@pytest.mark.parametrize("kind", ["mixture", pytest.param("branching", marks=pytest.mark.slow)])
def test_onnxruntime_gives_the_same_numbers(kind: str, tmp_path: Path):
    import onnx
    import onnxruntime

    if kind == "mixture":
        graph, inputs, dynamic = mixture(), mixture_inputs(), DYNAMIC
        others = [mixture_inputs(batch) for batch in (5, 2, 9)]
    else:
        graph, inputs, dynamic = make_branching(), (torch.randn(5, 8),), None
        others = [(scale * torch.randn(5, 8),) for scale in (1.0, -1.0, 0.02, 50.0)]
    path = tmp_path / "graph.onnx"
    program = torch.onnx.export(
        graph.eval(), inputs, dynamo=True, dynamic_shapes=dynamic, verbose=False
    )
    program.save(path)
    onnx.checker.check_model(path, full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    for given in others:
        (output,) = session.run(None, dict(zip(names, (x.numpy() for x in given), strict=True)))
        with torch.no_grad():
            expected = graph(*given)
        torch.testing.assert_close(torch.from_numpy(output), expected, rtol=1e-4, atol=1e-5)
