"""What a graph costs beside the same network written by hand.

Three networks of tiny modules, so that calling weighs and arithmetic does not. Each exists three
times over the *same* module instances: as a flodl ``Graph``, as a class with attributes
(``x = self.l0(x)``, the usual style), and as a loop over a ``ModuleList``. One process, one thread.

    python -m benchmarks.graph_overhead [--rounds 60] [--output docs/benchmarks/graph_overhead.md]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import environment, interleaved, median_ratio, publish, table
from flodl.graph import FlowBuilder

WIDTH = 16
BATCH = 4
FORMS = ("graph", "attributes", "loop")
CALLS = 20  # per timed moment: a single call is shorter than the timer deserves

Network = dict[str, nn.Module]


def attributes_form(layers: list[nn.Module], statements: list[str]) -> nn.Module:
    """A class as people write it: one attribute per layer, one line per call."""
    body = "\n".join(f"        {line}" for line in ["x = input", *statements, "return x"])
    scope: dict[str, Any] = {"nn": nn}
    exec(f"class Attributes(nn.Module):\n    def forward(self, input):\n{body}\n", scope)
    module: nn.Module = scope["Attributes"]()
    for index, layer in enumerate(layers):
        setattr(module, f"l{index}", layer)
    return module


class ChainLoop(nn.Module):
    """``for layer in layers: x = layer(x)``."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        """Run the chain."""
        for layer in self.layers:
            x = layer(x)
        return x


class ResidualLoop(ChainLoop):
    """``for layer in layers: x = x + layer(x)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Run the stack."""
        for layer in self.layers:
            x = x + layer(x)
        return x


class ParallelLoop(nn.Module):
    """``for block in blocks: x = block[0](x) + block[1](x) + …``."""

    def __init__(self, layers: list[nn.Module], branches: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleList(layers[i : i + branches]) for i in range(0, len(layers), branches)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Run the blocks."""
        for block in self.blocks:
            assert isinstance(block, nn.ModuleList)
            outputs = [layer(x) for layer in block]
            x = outputs[0]
            for output in outputs[1:]:
                x = x + output
        return x


def linear() -> nn.Module:
    """A small layer whose repeated application neither grows nor dies."""
    layer = nn.Linear(WIDTH, WIDTH)
    nn.init.orthogonal_(layer.weight, gain=0.5)
    return layer


def chain(count: int = 100) -> Network:
    """Linear and Tanh in turn."""
    layers = [linear() if index % 2 == 0 else nn.Tanh() for index in range(count)]
    builder = FlowBuilder.from_(layers[0])
    for layer in layers[1:]:
        builder.through(layer)
    statements = [f"x = self.l{index}(x)" for index in range(count)]
    forms = (builder.build(), attributes_form(layers, statements), ChainLoop(layers))
    return dict(zip(FORMS, forms, strict=True))


def residual(count: int = 50) -> Network:
    """A stack of ``x + linear(x)``."""
    layers = [linear() for _ in range(count)]
    builder = FlowBuilder()
    for layer in layers:
        builder.also(layer)
    statements = [f"x = x + self.l{index}(x)" for index in range(count)]
    forms = (builder.build(), attributes_form(layers, statements), ResidualLoop(layers))
    return dict(zip(FORMS, forms, strict=True))


def split_merge(blocks: int = 20, branches: int = 4) -> Network:
    """Blocks of parallel layers whose outputs are added."""
    layers = [linear() for _ in range(blocks * branches)]
    builder = FlowBuilder()
    statements = []
    for start in range(0, len(layers), branches):
        builder.split(layers[start : start + branches]).merge("add")
        calls = [f"self.l{index}(x)" for index in range(start, start + branches)]
        statements.append("x = " + " + ".join(calls))
    forms = (
        builder.build(),
        attributes_form(layers, statements),
        ParallelLoop(layers, branches),
    )
    return dict(zip(FORMS, forms, strict=True))


def forward_no_grad(module: nn.Module, x: Tensor) -> None:
    """Inference."""
    with torch.no_grad():
        module(x)


def forward_grad(module: nn.Module, x: Tensor) -> None:
    """Forward that records for autograd."""
    module(x)


def forward_backward(module: nn.Module, x: Tensor) -> None:
    """A training step without the optimizer."""
    module.zero_grad()
    module(x).sum().backward()


MODES: dict[str, Callable[[nn.Module, Tensor], None]] = {
    "forward, no_grad": forward_no_grad,
    "forward, grad": forward_grad,
    "forward + backward": forward_backward,
}


def repeated(call: Callable[[nn.Module, Tensor], None], module: nn.Module, x: Tensor) -> None:
    """One timed moment."""
    for _ in range(CALLS):
        call(module, x)


def row(name: str, network: Network, mode: str, rounds: int) -> list[str]:
    """Time the three forms of one network in one mode."""
    x = torch.ones(BATCH, WIDTH)
    subjects = {form: partial(repeated, MODES[mode], network[form], x) for form in FORMS}
    seconds = interleaved(subjects, rounds)
    times = [f"{statistics.median(seconds[form]) / CALLS * 1e6:.0f}" for form in FORMS]
    ratios = [f"{median_ratio(seconds['graph'], seconds[form]):.3f}" for form in FORMS[1:]]
    return [name, mode, *times, *ratios]


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    networks = {"chain": chain(), "residual": residual(), "split/merge": split_merge()}
    for name, network in networks.items():
        outputs = [network[form](torch.ones(BATCH, WIDTH)) for form in FORMS]
        if not all(torch.equal(outputs[0], other) for other in outputs[1:]):
            sys.exit(f"{name}: the three forms do not compute the same")
    gc.disable()  # a collection would fall on whichever form is running
    rows = [
        row(name, network, mode, options.rounds)
        for name, network in networks.items()
        for mode in MODES
    ]
    page = "\n\n".join(
        [
            "# Graph overhead",
            f"{environment('torch')}, 1 thread; {options.rounds} interleaved rounds of {CALLS} "
            f"calls, medians. Tensors are float32 `[{BATCH}, {WIDTH}]`. A flodl `Graph` beside the "
            "same module instances called by hand: a ratio is graph time / hand-written time of "
            "the same round, below 1 the graph is faster.",
            "- chain: 100 modules, Linear(16, 16) and Tanh in turn\n"
            "- residual: 50 × `x + Linear(x)`\n"
            "- split/merge: 20 blocks of 4 parallel Linear, summed",
            table(
                [
                    "network", "mode", "graph µs", "attributes µs", "ModuleList loop µs",
                    "graph / attributes", "graph / loop",
                ],
                rows,
            ),
            "*attributes* is `x = self.l0(x)`, line by line: every `self.l0` passes through "
            "`Module.__getattr__`. *loop* iterates over a `ModuleList` and is the fastest way to "
            "write a chain by hand; the graph pays a type check and a registry look-up per node.",
        ]
    )  # fmt: skip
    publish(page, options.output)


if __name__ == "__main__":
    main()
