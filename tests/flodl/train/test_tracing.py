"""One thread traces a module while another one trains."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, fx, nn

from flodl.train.engines.tracing import trace_own_thread_only


class Slow(nn.Module):
    """Its forward waits in the middle, so that tracing it takes as long as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        self.begun.set()
        assert self.go_on.wait(60)
        return self.inner(x).relu()


def test_modules_are_called_as_usual_while_another_thread_traces() -> None:
    trace_own_thread_only()
    slow, graphs = Slow(), list[fx.Graph]()
    tracing = threading.Thread(target=lambda: graphs.append(fx.Tracer().trace(slow)))
    model, x = nn.Sequential(nn.Linear(2, 3), nn.Tanh()), torch.ones(1, 2)
    expected = model(x)
    tracing.start()
    assert slow.begun.wait(60)
    try:
        assert torch.equal(model(x), expected)
    finally:
        slow.go_on.set()
        tracing.join()
    (graph,) = graphs
    assert [node.op for node in graph.nodes] == [
        "placeholder",
        "call_module",
        "call_method",
        "output",
    ]


def test_tracing_a_module_that_is_no_part_is_still_refused() -> None:
    trace_own_thread_only()
    other = nn.Linear(2, 2)

    class Stranger(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return other(x)

    with pytest.raises(NameError, match="not installed as a submodule"):
        fx.symbolic_trace(Stranger())
