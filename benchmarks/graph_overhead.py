"""What a graph costs beside the same network written by hand.

Networks of tiny modules, so that calling weighs and arithmetic does not. Each exists twice over the
*same* module instances: as a flodl ``Graph`` and as a module written by hand; the chain and the
tower also as a class with one attribute per layer. Networks in which rows part run on a batch of
usual size. One process, one thread, interleaved.

    python -m benchmarks.graph_overhead [--rounds 60] [--output docs/benchmarks/graph_overhead.md]
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import (
    Bar,
    command_line,
    interleaved,
    median_ratio,
    middle,
    page,
    publish,
    ratios,
    read_options,
    spread,
    table,
)
from flodl.graph import (
    ArgmaxSelector,
    FlowBuilder,
    Graph,
    NamedInputModule,
    SoftmaxRouter,
    ThresholdHalt,
)

WIDTH = 16
BATCH = 4
ROWS, WIDER, FEW_CALLS = 512, 128, 5  # of the networks in which rows part
CALLS = 20  # per timed moment: a single call is shorter than the timer deserves
STEPS = 100  # calls of the cell before its backward
NODES = 10_000

Forms = dict[str, nn.Module]


def linear() -> nn.Module:
    """A small layer whose repeated application neither grows nor dies."""
    layer = nn.Linear(WIDTH, WIDTH)
    nn.init.orthogonal_(layer.weight, gain=0.5)
    return layer


class Chain(nn.Module):
    """``for layer in layers: x = layer(x)``."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        """Run the chain."""
        for layer in self.layers:
            x = layer(x)
        return x


class Tower(Chain):
    """``for layer in layers: x = x + layer(x)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Run the tower."""
        for layer in self.layers:
            x = x + layer(x)
        return x


class Mixture(nn.Module):
    """A softmax router and experts whose outputs are added by weight."""

    def __init__(self, router: nn.Module, experts: list[nn.Module]) -> None:
        super().__init__()
        self.router = router
        self.experts = nn.ModuleList(experts)

    def forward(self, x: Tensor) -> Tensor:
        """Weigh the experts."""
        weights = self.router(x)
        y: Tensor = weights[..., 0:1] * self.experts[0](x)
        for i in range(1, len(self.experts)):
            y = y + weights[..., i : i + 1] * self.experts[i](x)
        return y


class Gathered(nn.Module):
    """Gathers the rows of each branch, runs it and copies the results to their rows."""

    def __init__(self, router: nn.Module, branches: list[nn.Module]) -> None:
        super().__init__()
        self.router = router
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Run each branch on its rows."""
        choice = self.router(x)
        y = torch.empty_like(x)
        for index, branch in enumerate(self.branches):
            rows = (choice == index).nonzero().squeeze(1)
            if len(rows):
                y.index_copy_(0, rows, branch(x.index_select(0, rows)))
        return y


class Sparse(Gathered):
    """Gathers the rows that use each expert, and adds the results by weight."""

    def forward(self, x: Tensor) -> Tensor:
        """Run each expert on its rows."""
        weights, choice = self.router(x).topk(2)
        y = torch.zeros_like(x)
        for index, expert in enumerate(self.branches):
            rows, places = (choice == index).nonzero(as_tuple=True)
            if len(rows):
                weight = weights[rows, places].unsqueeze(1)
                y.index_add_(0, rows, weight * expert(x.index_select(0, rows)))
        return y


class Masked(nn.Module):
    """Iterates until all rows are done; a row that is done keeps its state.

    The body gets of such a row what it got last: else the gradient of the row could become NaN.
    """

    def __init__(self, body: nn.Module, halt: nn.Module, most: int) -> None:
        super().__init__()
        self.body, self.halt, self.most = body, halt, most

    def forward(self, x: Tensor) -> Tensor:
        """Iterate."""
        seen = x
        for _ in range(self.most):
            done = self.halt(x) > 0
            if done.all():
                break
            done = done.unsqueeze(1)
            seen = torch.where(done, seen, x)
            x = torch.where(done, x, self.body(seen))
        return x


class Cell(NamedInputModule):
    """``h = tanh(W x + U h)`` (Elman 1990), with the previous ``h`` delivered by name."""

    def __init__(self) -> None:
        super().__init__()
        self.input: nn.Module = linear()
        self.state: nn.Module = linear()

    def forward_named(self, x: Tensor, refs: Mapping[str, Tensor]) -> Tensor:
        """Advance by one step."""
        y: Tensor = self.input(x) + self.state(refs["h"])
        return torch.tanh(y)


class Recurrent(nn.Module):
    """The same cell by hand: the state is an attribute, as recurrent modules are written."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.input = cell.input
        self.state = cell.state
        self.h: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Advance by one step."""
        h = torch.zeros_like(x) if self.h is None else self.h
        y: Tensor = torch.tanh(self.input(x) + self.state(h))
        self.h = y
        return y

    def detach_state(self) -> None:
        """Cut the history."""
        if self.h is not None:
            self.h = self.h.detach()


class Repeat(nn.Module):
    """``for _ in range(n): x = body(x)``."""

    def __init__(self, body: nn.Module, count: int) -> None:
        super().__init__()
        self.body = body
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        """Iterate."""
        for _ in range(self.count):
            x = self.body(x)
        return x


class Nest(nn.Module):
    """Two children in a row and a residual layer around them; children may be nests."""

    def __init__(self, first: nn.Module, second: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.second = second
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        """Run the children."""
        y: Tensor = self.second(self.first(x))
        last: Tensor = self.last(y)
        return y + last


def attributes_form(layers: list[nn.Module], statement: str) -> nn.Module:
    """A class as people write it: one attribute per layer, one line per call."""
    lines = [statement.format(index) for index in range(len(layers))]
    body = "\n".join(f"        {line}" for line in [*lines, "return x"])
    scope: dict[str, Any] = {"nn": nn}
    exec(f"class Attributes(nn.Module):\n    def forward(self, x):\n{body}\n", scope)
    module: nn.Module = scope["Attributes"]()
    for index, layer in enumerate(layers):
        setattr(module, f"l{index}", layer)
    return module


def chained(layers: list[nn.Module]) -> FlowBuilder:
    """A flow of all layers."""
    flow = FlowBuilder.from_(layers[0])
    for layer in layers[1:]:
        flow.through(layer)
    return flow


def chain() -> Forms:
    """100 modules, Linear and Tanh in turn."""
    layers = [linear() if index % 2 == 0 else nn.Tanh() for index in range(100)]
    by_attribute = attributes_form(layers, "x = self.l{}(x)")
    return {"graph": chained(layers).build(), "hand": Chain(layers), "attributes": by_attribute}


def tower() -> Forms:
    """50 times ``x + linear(x)``."""
    layers = [linear() for _ in range(50)]
    flow = FlowBuilder()
    for layer in layers:
        flow.also(layer)
    by_attribute = attributes_form(layers, "x = x + self.l{}(x)")
    return {"graph": flow.build(), "hand": Tower(layers), "attributes": by_attribute}


def gate() -> Forms:
    """Four experts behind a softmax router."""
    router, experts = SoftmaxRouter(WIDTH, 4), [linear() for _ in range(4)]
    graph = FlowBuilder.from_(nn.Identity()).gate(router, experts).build()
    return {"graph": graph, "hand": Mixture(router, experts)}


def loop() -> Forms:
    """One linear layer, fifty times."""
    body = linear()
    graph = FlowBuilder.from_(nn.Identity()).loop_body(body).for_n(50).build()
    return {"graph": graph, "hand": Repeat(body, 50)}


def perceptron() -> nn.Module:
    """Two layers, four times as wide inside, as a branch usually is."""
    return nn.Sequential(nn.Linear(WIDER, 4 * WIDER), nn.GELU(), nn.Linear(4 * WIDER, WIDER))


def switch() -> Forms:
    """Four branches; a linear layer sends each row to one."""
    router, branches = ArgmaxSelector(WIDER, 4), [perceptron() for _ in range(4)]
    graph = FlowBuilder.from_(nn.Identity()).switch(router, branches).build()
    return {"graph": graph, "hand": Gathered(router, branches)}


def sparse_gate() -> Forms:
    """Four experts behind a softmax router; each row uses two."""
    router, experts = SoftmaxRouter(WIDER, 4), [perceptron() for _ in range(4)]
    graph = FlowBuilder.from_(nn.Identity()).gate(router, experts, top_k=2).build()
    return {"graph": graph, "hand": Sparse(router, experts)}


def halting() -> Forms:
    """Rows that grow until their largest element is above a threshold, after 1 to 9 iterations."""
    body = nn.Linear(WIDER, WIDER, bias=False)
    nn.init.eye_(body.weight).data.mul_(1.2)
    halt = ThresholdHalt(4.0)
    graph = FlowBuilder.from_(nn.Identity()).loop_body(body).while_cond(halt, 20).build()
    return {"graph": graph, "hand": Masked(body, halt, 20)}


def nested() -> Forms:
    """Three levels: four leaves of five linear layers under two branches under a root."""
    leaves = [[linear() for _ in range(5)] for _ in range(4)]
    around = [linear() for _ in range(3)]

    def graph(label: str, first: nn.Module, second: nn.Module, last: nn.Module) -> Graph:
        return FlowBuilder.from_(first).through(second).also(last).label(label).build()

    inner = [chained(leaf).label(f"leaf{i}").build() for i, leaf in enumerate(leaves)]
    middle = [graph(f"branch{i}", inner[2 * i], inner[2 * i + 1], around[i]) for i in range(2)]
    by_hand = [Chain(leaf) for leaf in leaves]
    hands = [Nest(by_hand[2 * i], by_hand[2 * i + 1], around[i]) for i in range(2)]
    root = graph("root", middle[0], middle[1], around[2])
    return {"graph": root, "hand": Nest(hands[0], hands[1], around[2])}


def cell() -> Forms:
    """A forward reference: a recurrent cell that reads its own previous output."""
    step = Cell()
    graph = FlowBuilder.from_(nn.Identity()).through(step).using("h").tag("h").build()
    return {"graph": graph, "hand": Recurrent(step)}


def forward_only(module: nn.Module, x: Tensor) -> None:
    """Inference."""
    with torch.no_grad():
        module(x)


def forward_backward(module: nn.Module, x: Tensor) -> None:
    """A training step without the optimizer."""
    module.zero_grad()
    module(x).sum().backward()


def sequence(module: Any, x: Tensor) -> None:
    """A training step over many calls of a cell: backpropagation through all of them."""
    module.zero_grad()
    for _ in range(STEPS):
        y = module(x)
    y.sum().backward()
    module.detach_state()


def repeated(
    call: Callable[[nn.Module, Tensor], None], module: nn.Module, x: Tensor, times: int
) -> None:
    """One timed moment."""
    for _ in range(times):
        call(module, x)


NETWORKS: dict[str, tuple[Callable[[], Forms], Bar]] = {
    "chain of 100 layers": (chain, Bar(1.02)),
    "residual tower of 50": (tower, Bar(1.02)),
    "gate of 4 experts": (gate, Bar(1.0)),
    "loop of 50 iterations": (loop, Bar(1.02)),
    "three-level tree": (nested, Bar(1.02)),
}


PARTING: dict[str, tuple[Callable[[], Forms], Bar]] = {
    "switch of 4 branches": (switch, Bar(1.1)),
    "gate of 2 of 4 experts": (sparse_gate, Bar(1.1)),
    "loop until rows are done": (halting, Bar(1.1)),
}
"""Networks in which rows part; the bar is a gather or a mask written by hand."""

CELL, OBSERVED = Bar(1.1), Bar(1.01)


def compare(
    forms: Forms, call: Callable[..., None], x: Tensor, times: int, rounds: int, bar: Bar
) -> list[str]:
    """Microseconds per call of graph and hand-written module, and ratios to all other forms."""
    subjects = {name: partial(repeated, call, module, x, times) for name, module in forms.items()}
    seconds = interleaved(subjects, rounds)
    graph, hand = seconds["graph"], seconds["hand"]
    ratio = median_ratio(graph, hand)
    return [
        *(middle(each, ".0f", 1e6 / times) for each in (graph, hand)),
        f"{ratio:.3f}",
        spread(ratios(graph, hand), ".3f"),
        f"{median_ratio(graph, seconds['attributes']):.3f}" if "attributes" in seconds else "",
        bar.verdict(ratio),
    ]


def overhead(rounds: int) -> list[list[str]]:
    """One row per network and mode."""
    rows = []
    modes = {"forward, no_grad": forward_only, "forward + backward": forward_backward}
    same, apart = torch.ones(BATCH, WIDTH), torch.randn(ROWS, WIDER)
    for name, (make, bar) in {**NETWORKS, **PARTING}.items():
        forms = make()
        x, times = (apart, FEW_CALLS) if name in PARTING else (same, CALLS)
        outputs = [module(x) for module in forms.values()]
        if not all(torch.allclose(outputs[0], other, atol=1e-5) for other in outputs[1:]):
            sys.exit(f"{name}: the forms do not compute the same")
        for mode, call in modes.items():
            rows.append([name, mode, *compare(forms, call, x, times, rounds, bar)])
    mode = f"{STEPS} forwards + backward"
    rows.append(["cell with state", mode, *compare(cell(), sequence, same, 1, rounds, CELL)])
    return rows


def observed(count: int = 10) -> Graph:
    """Ten linear layers, each with a tag."""
    flow = FlowBuilder.from_(linear()).tag("t0")
    for index in range(1, count):
        flow.through(linear()).tag(f"t{index}")
    return flow.build()


def observation(rounds: int) -> list[str]:
    """What ten captured tags add to a training step of the same graph."""
    graph = observed()
    silent = observed().observe(False)
    forms: Forms = {"graph": graph, "hand": silent}
    return compare(forms, forward_backward, torch.ones(BATCH, WIDTH), CALLS, rounds, OBSERVED)


def construction(nodes: int, times: int) -> list[list[str]]:
    """Seconds to build and to hash large graphs: the best of some tries."""
    rows = []
    for shape, step in (("chain", "through"), ("tower", "also")):
        builds, hashes = [], []
        for _ in range(times):
            layers = [nn.Linear(1, 1) for _ in range(nodes if step == "through" else nodes // 2)]
            start = time.perf_counter()
            flow = FlowBuilder()
            for layer in layers:
                getattr(flow, step)(layer)
            graph = flow.build()
            built = time.perf_counter()
            graph.structural_hash()
            hashes.append(time.perf_counter() - built)
            builds.append(built - start)
        rows.append([shape, f"{nodes:,}", f"{min(builds):.2f}", f"{min(hashes):.2f}"])
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("graph_overhead", __doc__, rounds=60)
    parser.add_argument("--nodes", type=int, default=NODES, help="of the graphs that are built")
    options = read_options(parser, argv, rounds=1, nodes=100)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    built = construction(options.nodes, 1 if options.quick else 3)
    gc.disable()  # a collection would fall on whichever form is running
    try:
        rows = overhead(options.rounds)
        with_tags, without, ratio, wide, _, verdict = observation(options.rounds)
    finally:
        gc.enable()
    header = ["network", "mode", "graph µs", "by hand µs", "graph / by hand", "spread"]
    text = page(
        options,
        "Graph overhead",
        f"{options.rounds} interleaved rounds of {CALLS} calls, medians and the middle 80 %. "
        f"Tensors are float32 `[{BATCH}, {WIDTH}]`, and `[{ROWS}, {WIDER}]` where rows part. A "
        "flodl `Graph` beside the same module "
        "instances called by hand. A ratio is graph time / hand-written time of the same round; "
        "below 1 the graph is faster.",
        table([*header, "graph / attributes", "bar"], rows),
        "Since 2026-11-23 a sum checks that its terms have one shape. The residual tower was 1.013 "
        "and 1.006 before.",
        "*By hand* iterates over a `ModuleList` where there are many layers, which is the "
        "fastest way to write a chain. *Attributes* is `x = self.l0(x)`, line by line, where "
        "every `self.l0` passes through `Module.__getattr__`. The gate is faster because it "
        "splits its weights once and uses fused multiply-adds. By hand it is a sum of slices "
        "times outputs.",
        f"Where rows part, a moment is {FEW_CALLS} calls, and branches and experts are two layers "
        f"of {WIDER} × {4 * WIDER}. *By hand* gathers the rows of each branch with `index_select` "
        "and copies or adds the results to their rows. The loop by hand keeps the state and the "
        "last input of finished rows with masks.",
        f"Observation: ten layers with ten tags captured, forward + backward: {with_tags} µs "
        f"beside {without} µs without, {ratio}× ({wide}; bar {verdict}).",
        "Construction, best of three:",
        table(["graph", "nodes", "build s", "hash s"], built),
    )
    publish(text, options.output)


if __name__ == "__main__":
    main()
