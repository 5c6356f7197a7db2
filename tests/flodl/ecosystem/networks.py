"""Three realistic graphs that the tools of the ecosystem are tried on, and their inputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from flodl import (
    ArgmaxSelector,
    BatchArgmaxSelector,
    FlowBuilder,
    Graph,
    NamedInputModule,
    SoftmaxRouter,
    StateAdd,
    ThresholdHalt,
)

WIDTH = 16


class Cell(NamedInputModule):
    """A gated recurrent unit whose state the graph carries."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRUCell(WIDTH, WIDTH)

    def forward_named(self, x: Tensor, refs: Mapping[str, Tensor]) -> Tensor:
        state: Tensor = self.gru(x, refs["memory"])
        return state


def mixture() -> Graph:
    """Residual, gate, counted loop, map, labelled child, second input; stateless.

    ``[B, 8]`` and a context ``[B, 16]`` in, ``[B, 3]`` out.
    """
    encoder = (
        FlowBuilder.from_(nn.Linear(8, WIDTH))
        .tag("scan")
        .through(nn.LayerNorm(WIDTH))
        .also(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()), name="block")
        .label("encoder")
        .build()
    )
    return (
        FlowBuilder.from_(encoder)
        .tag("encoded")
        .input("context")
        .also(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()), name="residual")
        .gate(SoftmaxRouter(WIDTH, 2), [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
        .using("context")
        .tag("mixed")
        .loop_body(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))
        .for_n(3)
        .map(nn.Linear(4, 4))
        .slices(4)
        .through(StateAdd())
        .using("encoded")
        .through(nn.Linear(WIDTH, 3), name="head")
        .label("mixture")
        .build()
    )


def recurrent() -> Graph:
    """A cell whose state is carried from call to call: ``[B, 8]`` in, ``[B, 3]`` out."""
    return (
        FlowBuilder.from_(nn.Linear(8, WIDTH))
        .through(nn.Tanh())
        .through(Cell())
        .using("memory")
        .tag("memory")
        .through(nn.Linear(WIDTH, 3), name="head")
        .build()
    )


def branching(batch: bool = False) -> Graph:
    """A switch and a conditional loop, ``[B, 8]`` to same; values decide by row or by batch."""
    branches = [nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh())]
    flow = FlowBuilder.from_(nn.Linear(8, 8))
    if batch:
        flow.batch_switch(BatchArgmaxSelector(8, 2), branches)
    else:
        flow.switch(ArgmaxSelector(8, 2), branches)
    loop = flow.tag("chosen").loop_body(nn.Linear(8, 8, bias=False), name="grow")
    finish = loop.batch_while_cond if batch else loop.while_cond
    return finish(ThresholdHalt(6.0), 12).through(nn.Linear(8, 8), name="head").build()


def mixture_inputs(batch: int = 5) -> tuple[Tensor, Tensor]:
    """What :func:`mixture` takes."""
    return torch.randn(batch, 8), torch.randn(batch, WIDTH)


def make_branching(batch: bool = False) -> Graph:
    """A :func:`branching` whose loop grows what it gets, so that it stops by its condition."""
    graph = branching(batch)
    with torch.no_grad():
        graph.get_parameter("grow.body.weight").copy_(1.5 * torch.eye(8))
    return graph


def outcome(graph: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Output, and the gradient of every parameter and input for a loss of no symmetry."""
    given = tuple(x.detach().clone().requires_grad_() for x in inputs)
    for parameter in graph.parameters():
        parameter.grad = None
    output = graph(*given)
    (output * torch.linspace(0.5, 1.5, output.numel()).view_as(output)).sum().backward()
    seen = {"output": output.detach()}
    seen |= {f"input {i}": x.grad for i, x in enumerate(given) if x.grad is not None}
    seen |= {
        name.replace("_orig_mod.", ""): parameter.grad.clone()
        for name, parameter in graph.named_parameters()
        if parameter.grad is not None
    }
    return seen


def assert_same(seen: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """The same tensors under the same names, up to rounding."""
    assert seen.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(seen[name], tensor, rtol=1e-4, atol=1e-5, msg=name)
