"""What the rewrites of a graph bring: plain, rewritten, and the best plain PyTorch by hand.

Each network exists three times over the *same* layers: as a flodl ``Graph`` as it is, as the same
graph after ``rewrite()``, and written by hand in plain PyTorch by someone who knows the trick. A
moment is forward and backward; the optimizer is left out, because it is the same for all.

    python -m benchmarks.graph_rewrites [--rounds 20] [--output docs/benchmarks/graph_rewrites.md]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - what everyone calls it

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
    seconds_of,
    spread,
    table,
)
from flodl.graph import FlowBuilder, Graph, NamedInputModule, SoftmaxRouter, StateAdd

PLAIN, HAND = Bar(1.02), Bar(1.10)
"""A rewritten graph takes at most this part of the plain graph's time, and of that by hand.

A rewrite that is refused changes nothing, so its first ratio is 1 and the noise of the machine.
"""

MOMENT = 0.01
"""Seconds of a moment at least: a single call of a tiny network is shorter than the timer."""

HEADER = ["network", "size", "plain ms", "rewritten / plain", "spread", "bar"]
HEADER += ["rewritten / by hand", "spread", "bar"]

Forward = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Network:
    """A graph and the same computation by hand.

    Attributes:
        build: Makes the graph, over the same layers each time.
        hand: The same over these layers.
        x: Its input.
    """

    build: Callable[[], Graph]
    hand: Forward
    x: Tensor


def linears(count: int, width: int, out: int) -> list[nn.Linear]:
    """Layers with weights of their own."""
    return [nn.Linear(width, out) for _ in range(count)]


def by_weight(weights: Tensor, outputs: Tensor) -> Tensor:
    """``[R, N]`` and ``[R, N, D]`` to ``[R, D]``."""
    return torch.bmm(weights.unsqueeze(1), outputs).squeeze(1)


def gate(width: int, experts: int, rows: int) -> Network:
    """Linear experts behind a softmax router."""
    layers, router = linears(experts, width, width), SoftmaxRouter(width, experts)

    def hand(x: Tensor) -> Tensor:
        weight = torch.cat([layer.weight for layer in layers])
        bias = torch.cat([layer.bias for layer in layers])
        return by_weight(router(x), F.linear(x, weight, bias).view(len(x), experts, width))

    def build() -> Graph:
        return FlowBuilder().gate(router, layers).build()

    return Network(build, hand, torch.randn(rows, width))


def normed_gate(width: int, experts: int, rows: int) -> Network:
    """Experts of Linear, GELU and LayerNorm."""
    layers, router = linears(experts, width, width), SoftmaxRouter(width, experts)
    norms = [nn.LayerNorm(width) for _ in range(experts)]

    def hand(x: Tensor) -> Tensor:
        weight = torch.cat([layer.weight for layer in layers])
        bias = torch.cat([layer.bias for layer in layers])
        hidden = F.gelu(F.linear(x, weight, bias).view(len(x), experts, width))
        gain = torch.stack([norm.weight for norm in norms])
        shift = torch.stack([norm.bias for norm in norms])
        return by_weight(router(x), F.layer_norm(hidden, (width,)) * gain + shift)

    chosen = [nn.Sequential(one, nn.GELU(), two) for one, two in zip(layers, norms, strict=True)]

    def build() -> Graph:
        return FlowBuilder().gate(router, chosen).build()

    return Network(build, hand, torch.randn(rows, width))


def settling(width: int, rows: int, times: int) -> Network:
    """``h = tanh(W h + U x)``, again and again, with the same ``x``."""
    state, entry = linears(2, width, width)

    def hand(x: Tensor) -> Tensor:
        h, u = x, entry(x)
        for _ in range(times):
            h = torch.tanh(state(h) + u)
        return h

    def build() -> Graph:
        body = FlowBuilder.from_(state).tag("wh").input("x").map(entry).batched().over("x")
        body.through(StateAdd()).using("wh").through(nn.Tanh())
        return FlowBuilder().tag("x").loop_body(body.build()).for_n(times).using("x").build()

    return Network(build, hand, torch.randn(rows, width))


class Recurrence(NamedInputModule):
    """The part of a gated recurrent unit that needs the state; takes the projected input."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.state = nn.Linear(hidden, 3 * hidden)

    def forward_named(self, x: Tensor, refs: Mapping[str, Tensor]) -> Tensor:
        """Advance by one step (Cho et al. 2014)."""
        h = refs["h"]
        reset_in, update_in, new_in = x.chunk(3, -1)
        reset_h, update_h, new_h = self.state(h).chunk(3, -1)
        fresh = torch.tanh(new_in + torch.sigmoid(reset_in + reset_h) * new_h)
        return torch.lerp(fresh, h, torch.sigmoid(update_in + update_h))


def recurrent(width: int, hidden: int, rows: int, steps: int) -> Network:
    """A gated recurrent unit over ``[T, B, width]``; the graph carries its state."""
    entry, cell = nn.Linear(width, 3 * hidden), Recurrence(hidden)

    def zeros(x: Tensor) -> Tensor:
        return x.new_zeros(1, x.shape[-2], hidden)

    def hand(x: Tensor) -> Tensor:
        projected, states = entry(x), []
        h = zeros(x)
        for step in range(len(x)):
            h = cell(projected[step : step + 1], {"h": h})
            states.append(h)
        return torch.cat(states)

    def build() -> Graph:
        step = FlowBuilder.from_(entry).through(cell).using("h", init={"h": zeros}).tag("h")
        return FlowBuilder().map(step.build()).each().build()

    return Network(build, hand, torch.randn(steps, rows, width))


def mapped(width: int, rows: int) -> Network:
    """A layer on every sample alone, which by hand is one call."""
    layer, norm = nn.Linear(width, width), nn.LayerNorm(width)
    body = nn.Sequential(layer, nn.GELU(), norm)

    def build() -> Graph:
        return FlowBuilder().map(body).each().build()

    return Network(build, body, torch.randn(rows, width))


def twins(width: int, rows: int) -> Network:
    """Three branches, two of which are the same layers."""
    one, two = (nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(2))

    def hand(x: Tensor) -> Tensor:
        y: Tensor = 2 * one(x) + two(x)
        return y

    def build() -> Graph:
        return FlowBuilder().split([one, two, one]).merge("add").build()

    return Network(build, hand, torch.randn(rows, width))


SIZES: dict[str, tuple[Callable[..., Network], dict[str, tuple[int, ...]]]] = {
    "gate, experts Linear": (
        gate,
        {
            "4 of 16, 4 rows": (16, 4, 4),
            "8 of 128, 64 rows": (128, 8, 64),
            "8 of 512, 256 rows": (512, 8, 256),
        },
    ),
    "gate, experts Linear GELU LayerNorm": (
        normed_gate,
        {
            "4 of 16, 4 rows": (16, 4, 4),
            "8 of 128, 64 rows": (128, 8, 64),
            "8 of 512, 256 rows": (512, 8, 256),
        },
    ),
    "loop h = tanh(W h + U x)": (
        settling,
        {
            "width 16, 4 rows, 20 times": (16, 4, 20),
            "width 512, 256 rows, 10 times": (512, 256, 10),
        },
    ),
    "gated recurrent unit over a sequence": (
        recurrent,
        {
            "16 to 32, 4 rows, 50 steps": (16, 32, 4, 50),
            "256 to 512, 128 rows, 50 steps": (256, 512, 128, 50),
        },
    ),
    "map over samples": (
        mapped,
        {"width 16, 32 rows": (16, 32), "width 512, 64 rows": (512, 64)},
    ),
    "two equal branches of three": (
        twins,
        {"width 16, 4 rows": (16, 4), "width 512, 256 rows": (512, 256)},
    ),
}
"""Every network with its sizes; the small one is what a tiny model calls, the large one is work."""


def is_refused(graph: Graph) -> bool:
    """Whether a rewritten graph that was called computes its nodes as they are."""
    used = vars(graph)["_core"].rewrites.values()
    return any(getattr(one, "too_large", ()) for one in used)


def moments(network: Network, rounds: int) -> tuple[dict[str, list[float]], bool]:
    """Seconds of forward and backward in every round, by way; whether the rewrite is refused."""
    graphs = {"rewritten": network.build().rewrite(), "plain": network.build()}
    parameters = list(graphs["plain"].parameters())

    def called(name: str) -> Tensor:
        if name == "hand":
            return network.hand(network.x)
        graphs[name].end_sequence()
        value: Tensor = graphs[name](network.x)
        return value

    def step(name: str) -> None:
        torch.autograd.grad(called(name).sum(), parameters)

    ways = (*graphs, "hand")
    if not all(torch.allclose(called(w), called("plain"), rtol=1e-4, atol=1e-4) for w in ways):
        sys.exit(f"not all ways compute the same: {graphs['plain'].source()}")
    calls = max(1, round(MOMENT / min(seconds_of(partial(step, "plain")) for _ in range(3))))

    def moment(name: str) -> None:
        for _ in range(calls):
            step(name)

    taken = interleaved({name: partial(moment, name) for name in ways}, rounds)
    seconds = {name: [one / calls for one in each] for name, each in taken.items()}
    return seconds, is_refused(graphs["rewritten"])


def rows_of(rounds: int, *, quick: bool) -> list[list[str]]:
    """One row per network and size."""
    found = []
    for name, (make, sizes) in SIZES.items():
        for size, values in list(sizes.items())[: 1 if quick else None]:
            torch.manual_seed(0)
            network = make(*values)
            if not network.build().rewrites():
                sys.exit(f"{name}: there is nothing to rewrite")
            seconds, refused = moments(network, rounds)
            rewritten, plain, hand = (seconds[way] for way in ("rewritten", "plain", "hand"))
            over_plain, over_hand = (median_ratio(rewritten, base) for base in (plain, hand))
            found.append(
                [
                    name,
                    size + " (refused)" * refused,
                    middle(plain, ".3f", 1e3),
                    f"{over_plain:.3f}",
                    spread(ratios(rewritten, plain), ".3f"),
                    PLAIN.verdict(over_plain),
                    f"{over_hand:.3f}",
                    spread(ratios(rewritten, hand), ".3f"),
                    HAND.verdict(over_hand),
                ]
            )
            print(*found[-1], sep=" | ", file=sys.stderr, flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("graph_rewrites", __doc__, rounds=20)
    options = read_options(parser, argv, rounds=1)
    rows = rows_of(options.rounds, quick=options.quick)
    text = page(
        options,
        "Graph rewrites",
        f"{options.rounds} interleaved rounds of forward and backward in float32, medians of "
        "ratios and the middle 80 %. *Plain* is a flodl `Graph` as it is, *rewritten* the same "
        "graph after `rewrite()`, *by hand* the fastest plain PyTorch for the same layers. Below 1 "
        "the rewritten graph is faster. All three share their parameters. By hand, weights of "
        "experts are put together at every call, too, because they stay separate parameters. "
        "*Refused* is a size at which the rewrite does not pay, so the graph is computed as it is.",
        table(HEADER, rows),
        "Engine auto measures the rewrites in the steps of a training and keeps them only if they "
        "are faster there.",
    )
    publish(text, options.output)


if __name__ == "__main__":
    main()
