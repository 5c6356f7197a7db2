"""Every construct and many compositions of them against finite differences, in float64.

A *segment* is a few builder calls that keep the width of the stream. Each is checked alone, by
value, gradients of inputs and of all parameters; then with others in one graph. Graphs that carry
state are run three times and differentiated through all three calls.
"""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from flodl import (
    ArgmaxSelector,
    BatchArgmaxSelector,
    FixedSelector,
    FlowBuilder,
    LearnedHalt,
    LoopBody,
    NamedInputModule,
    Reshape,
    SelfAttention,
    SigmoidRouter,
    SoftmaxRouter,
    StateAdd,
    ThresholdHalt,
)
from tests.rows import each_row

WIDTH = 2


class Cell(nn.Module):
    """A smooth layer without thresholds, so that finite differences are exact enough."""

    def __init__(self, width=WIDTH, out=WIDTH):
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x):
        return torch.tanh(self.linear(x))


class Mix(NamedInputModule):
    """A product with the references, so that both sides have a gradient that varies."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward_named(self, x, refs):
        return torch.tanh(self.linear(x)) * (1 + sum(refs.values()))


class Duck(Cell):
    """Takes references by having the method."""

    def forward_named(self, x, refs):
        return self(x) + torch.sin(sum(refs.values()))


class Publishing(LoopBody):
    """Publishes every other state it passes through, scaled."""

    def __init__(self, trace):
        super().__init__()
        self.linear, self.trace_name = nn.Linear(WIDTH, WIDTH), trace

    def step(self, x, refs, emit):
        y = torch.tanh(self.linear(x) + sum(refs.values()))
        emit.publish(self.trace_name, y * y)
        return y


class Accumulating(nn.Module):
    """A body with memory of its own, forgotten before the loop."""

    def __init__(self):
        super().__init__()
        self.linear, self.memory = nn.Linear(WIDTH, WIDTH), None

    def reset(self):
        self.memory = None

    def trace(self):
        return self.memory

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        self.memory = y if self.memory is None else y * self.memory
        return self.memory + x


class Weights(nn.Module):
    """Weights of a chosen leading shape: all, samples, or every element."""

    def __init__(self, lead):
        super().__init__()
        self.lead = lead
        self.linear = nn.Linear(WIDTH, 2 * WIDTH if lead == "elements" else 2)

    def forward(self, x):
        weights = torch.sigmoid(self.linear(x))
        if self.lead == "elements":
            return weights.unflatten(-1, (WIDTH, 2))
        if self.lead == "all":
            return weights.flatten(0, -2).mean(0)
        return weights.flatten(1, -2).mean(1) if weights.dim() > 2 else weights


class PickByRef(NamedInputModule):
    """A switch's router that looks at references only; they are far from its threshold."""

    def forward_named(self, _, refs):
        return (sum(refs.values()).flatten(1).mean(1) > -50).long()


class Margin(nn.Module):
    """A condition that never comes near zero: it halts after a fixed growth."""

    def __init__(self, calls):
        super().__init__()
        self.calls, self.seen = calls, 0

    def forward(self, x):
        self.seen += 1
        return torch.full((len(x),), 1.0 if self.seen % self.calls == 0 else -1.0, dtype=x.dtype)


class Count(Margin):
    """A condition that halts the first row in the first test, the second in the second."""

    def __init__(self):
        super().__init__(1)

    def forward(self, x):
        self.seen += 1
        return (torch.arange(len(x)) < self.seen).to(x.dtype)


def cells(count=2):
    return [Cell() for _ in range(count)]


def inner(stateful=False, label=None):
    """A small graph to nest."""
    builder = FlowBuilder.from_(Cell()).tag("first").also(Cell())
    builder.through(Mix()).using("carried" if stateful else "first")
    builder.through(Cell()).tag("carried")
    return (builder.label(label) if label else builder).build()


def with_ports():
    return FlowBuilder.from_(Cell()).input("p", "q").through(Mix()).using("q", "p").build()


def shared(builder):
    cell = Cell()
    return builder.through(cell).also(cell).split([cell, Cell()]).merge("mean")


def same_graph_twice(stateful):
    def add(builder):
        graph = inner(stateful)
        return builder.through(graph).also(graph)

    return add


def tied(builder):
    """One weight matrix under two modules."""
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    second.weight = first.weight
    return builder.through(first).through(nn.Tanh()).through(second)


def ported(b, tags=("p", "q")):
    return b.fork(Cell()).tag("p").through(Cell()).tag("q").through(with_ports()).using(*tags)


SEGMENTS = {
    "through": lambda b: b.through(Cell()),
    "function": lambda b: b.through(torch.sin),
    "also": lambda b: b.also(Cell()),
    "also-product": lambda b: b.tag("s").also(Mix()).using("s"),
    "also_with": lambda b: b.also_with(Cell(), Cell()),
    "also_with-ref": lambda b: b.tag("s").also_with(Cell(), Mix()).using("s"),
    "fork": lambda b: b.fork(Cell()).tag("side").through(Mix()).using("side"),
    "fork-ref": lambda b: SEGMENTS["fork"](b.tag("s").fork(Mix()).using("s").tag("other")),
    "split-add": lambda b: b.split(cells()).merge("add"),
    "split-mean": lambda b: b.split(cells(3)).merge("mean"),
    "split-ref": lambda b: b.tag("s").split([Mix(), Duck()]).using("s").merge("add"),
    "tag_group": lambda b: b.split(cells()).tag_group("g").merge("add").through(Mix()).using("g_0"),
    "backward-ref": lambda b: b.tag("s").through(Cell()).through(Mix()).using("s"),
    "two-refs": lambda b: b.tag("s").through(Cell()).tag("u").through(Mix()).using("s").using("u"),
    "duck-ref": lambda b: b.tag("s").through(Cell()).through(Duck()).using("s"),
    "state_add": lambda b: b.tag("s").through(Cell()).through(StateAdd()).using("s"),
    "input": lambda b: b.input("aux").through(Mix()).using("aux"),
    "two-inputs": lambda b: b.input("aux", "more").through(Mix()).using("more", "aux"),
    "input-late": lambda b: b.through(Cell()).input("aux").also(Duck()).using("aux"),
    "state": lambda b: b.through(Mix()).using("m").tag("m"),
    "state-sum": lambda b: b.through(Cell()).through(StateAdd()).using("m").tag("m"),
    "state-late": lambda b: b.also(Mix()).using("m").through(Cell()).tag("m").through(Cell()),
    "state-init": lambda b: b.through(Mix()).using("m", init={"m": torch.ones_like}).tag("m"),
    "state-two-readers": lambda b: b.through(Mix()).using("m").also(Duck()).using("m").tag("m"),
    "state-of-fork": lambda b: b.through(Mix()).using("m").fork(Cell()).tag("m"),
    "state-of-input": lambda b: b.through(Mix()).using("aux").input("aux"),
    "state-of-group": lambda b: (
        b.through(Mix()).using("g_1").split(cells()).tag_group("g").merge("add")
    ),
    "for": lambda b: b.loop_body(Cell()).for_n(3),
    "for-once": lambda b: b.loop_body(Cell()).for_n(1),
    "for-ref": lambda b: b.tag("s").loop_body(Mix()).for_n(3).using("s"),
    "for-state": lambda b: b.loop_body(Mix()).for_n(2).using("m").tag("m"),
    "for-emit": lambda b: b.loop_body(Publishing("seen")).for_n(3),
    "for-emit-ref": lambda b: b.tag("s").loop_body(Publishing("seen")).for_n(2).using("s"),
    "for-trace": lambda b: b.loop_body(Accumulating()).for_n(3).tag("loop"),
    "for-graph": lambda b: b.loop_body(inner()).for_n(2),
    "for-stateful-graph": lambda b: b.loop_body(inner(stateful=True)).for_n(2),
    "for-gru": lambda b: b.loop_body(nn.GRU(WIDTH, WIDTH, batch_first=True)).for_n(2),
    "while": lambda b: b.loop_body(Cell()).while_cond(ThresholdHalt(50.0), 3),
    "while-never": lambda b: b.also(Cell()).loop_body(Cell()).while_cond(ThresholdHalt(-50.0), 3),
    "while-some": lambda b: b.loop_body(Cell()).while_cond(Margin(3), 5),
    "while-learned": lambda b: b.loop_body(Cell()).while_cond(LearnedHalt(WIDTH), 3),
    "while-rows": lambda b: b.loop_body(Publishing("seen")).while_cond(Count(), 3),
    "until-rows": lambda b: b.tag("s").loop_body(Mix()).until_cond(Count(), 3).using("s"),
    "batch-while": lambda b: b.loop_body(Cell()).batch_while_cond(Margin(3), 5),
    "batch-until": lambda b: b.loop_body(Cell()).batch_until_cond(ThresholdHalt(-50.0), 3),
    "until": lambda b: b.loop_body(Cell()).until_cond(ThresholdHalt(50.0), 3),
    "until-once": lambda b: b.loop_body(Cell()).until_cond(ThresholdHalt(-50.0), 3),
    "until-some": lambda b: b.loop_body(Cell()).until_cond(Margin(2), 5),
    "until-learned": lambda b: b.loop_body(Publishing("seen")).until_cond(LearnedHalt(WIDTH), 3),
    "gate-softmax": lambda b: b.gate(SoftmaxRouter(WIDTH, 2), cells()),
    "gate-sigmoid": lambda b: b.gate(SigmoidRouter(WIDTH, 3), cells(3)),
    "gate-softmax-ref": lambda b: (
        b.tag("s").through(Cell()).gate(SoftmaxRouter(WIDTH, 2), cells()).using("s")
    ),
    "gate-sigmoid-state": lambda b: b.gate(SigmoidRouter(WIDTH, 2), cells()).using("m").tag("m"),
    "gate-all": lambda b: b.gate(Weights("all"), cells()),
    "gate-samples": lambda b: b.gate(Weights("samples"), cells()),
    "gate-elements": lambda b: b.gate(Weights("elements"), cells()),
    "gate-top": lambda b: b.gate(SoftmaxRouter(WIDTH, 3), cells(3), top_k=2),
    "gate-top-ref": lambda b: (
        b.tag("s").gate(SoftmaxRouter(WIDTH, 3), cells(3), top_k=1).using("s")
    ),
    "gate-graphs": lambda b: b.gate(SoftmaxRouter(WIDTH, 2), [inner(), Cell()]),
    "switch-0": lambda b: b.switch(FixedSelector(0), cells()),
    "switch-1": lambda b: b.switch(FixedSelector(1), cells()),
    "switch-2": lambda b: b.switch(FixedSelector(2), cells(3)),
    "switch-argmax": lambda b: b.switch(ArgmaxSelector(WIDTH, 2), cells()),
    "switch-rows": lambda b: b.switch(lambda x: torch.arange(len(x)) % 2, cells()),
    "batch-switch": lambda b: b.batch_switch(BatchArgmaxSelector(WIDTH, 2), cells()),
    "switch-ref": lambda b: b.tag("s").through(Cell()).switch(PickByRef(), cells()).using("s"),
    "switch-graph": lambda b: b.batch_switch(lambda _: torch.tensor(1), [Cell(), inner(True)]),
    "each": lambda b: b.map(Cell()).each(),
    "each-batched": lambda b: b.map(Cell()).batched().each(),
    "each-graph": lambda b: b.map(inner()).each(),
    "over": lambda b: b.tag("s").through(Cell()).map(Cell()).over("s"),
    "over-batched": lambda b: b.tag("s").also(Cell()).map(Cell()).batched().over("s"),
    "slices": lambda b: b.map(Cell(1, 1)).slices(2),
    "slices-batched": lambda b: b.map(Cell(1, 1)).batched().slices(2),
    "slices-whole": lambda b: b.map(Cell()).slices(1),
    "slices-wider": lambda b: b.map(Cell(1, 2)).slices(2).through(Cell(4, 2)),
    "nested": lambda b: b.through(inner()),
    "nested-labelled": lambda b: b.through(inner(label="child")),
    "nested-also": lambda b: b.also(inner(label="child")),
    "nested-stateful": lambda b: b.through(inner(stateful=True, label="child")),
    "nested-twice": same_graph_twice(False),
    "nested-twice-stateful": same_graph_twice(True),
    "nested-deep": lambda b: b.through(FlowBuilder.from_(inner()).also(inner(True)).build()),
    "nested-ports": ported,
    "nested-ports-swapped": lambda b: ported(b, ("q", "p")),
    "nested-ports-state": lambda b: b.input("q").through(with_ports()).using("q", "p").tag("p"),
    "shared": shared,
    "tied": tied,
    "lstm": lambda b: b.through(nn.LSTM(WIDTH, WIDTH, batch_first=True)),
    "gru": lambda b: b.through(nn.GRU(WIDTH, WIDTH, batch_first=True)),
    "lstm-expert": lambda b: (
        b.gate(SoftmaxRouter(WIDTH, 2), [nn.LSTM(WIDTH, WIDTH, batch_first=True), Cell()])
    ),
    "layer-norm": lambda b: b.also(nn.LayerNorm(WIDTH)).through(Cell()),
    "named": lambda b: b.through(Cell(), name="first").also(Cell(), name="second").tag("sum"),
}  # fmt: skip

IN_SEQUENCES = {
    "attention": lambda b: b.through(SelfAttention(WIDTH, 1)),
    "reshape": lambda b: b.through(Reshape(-1, WIDTH)).through(Cell()),
}
"""Segments that want [B, T, D]; the others take [B, D] as well."""

PAIRS = list(
    combinations(
        ["also", "split-mean", "state-sum", "for-emit", "gate-softmax", "each", "nested-ports",
         "until-some", "switch-1"], 2,
    )
)  # fmt: skip
TRIPLES = [
    ("fork", "for", "gate-sigmoid"),
    ("state", "slices", "nested"),
    ("split-ref", "while", "each"),
    ("gate-samples", "for", "state-sum"),
    ("nested-stateful", "for-trace", "switch-argmax"),
    ("lstm", "also_with", "slices"),
    ("gru", "state", "gate-all"),
    ("shared", "until", "over-batched"),
    ("input", "for", "gate-softmax"),
    ("two-inputs", "state-sum", "split-add"),
    ("switch-graph", "also", "slices-batched"),
    ("nested-twice-stateful", "tag_group", "each"),
    ("for-stateful-graph", "gate-elements", "through"),
    ("while-learned", "state", "nested-deep"),
]
TWICE = ["backward-ref", "state-sum", "for-ref", "gate-softmax", "nested-stateful", "slices"]


def random_weights(graph, seed):
    """Weights large enough that nothing is nearly linear."""
    generator = torch.Generator().manual_seed(seed)
    graph.double()
    with torch.no_grad():
        for parameter in graph.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return graph


def build(*segments, seed=0):
    builder = FlowBuilder()
    for segment in segments:
        builder = segment(builder)
    return random_weights(builder.build(), seed)


def visible(graph, output):
    """Everything of one call that a loss may use: output, tags, traces."""
    seen = [output, *map(graph.tagged, graph.tag_names())]
    for node in graph.topology.loops:
        for name in (f"{node.id}/halt", "seen"):
            seen += graph.traces(name) or []
        seen += graph.traces_by_node(node.id) or []
    return [value for value in seen if value.requires_grad]


def check(graph, lead=(2,), *, projected=False, second_order=False):
    """Compare gradients of all inputs and parameters with differences of three linked calls.

    Element by element, or along random directions where ``projected``: a tenth of the time, and
    as telling for graphs whose parts are checked element by element.
    """
    calls = 3 if graph.has_state() else 1
    arity = len(graph.topology.inputs)
    generator = torch.Generator().manual_seed(7)
    inputs = [
        torch.randn(*lead, WIDTH, dtype=torch.float64, generator=generator).requires_grad_()
        for _ in range(calls * arity)
    ]
    parameters = list(graph.parameters())

    def run(*tensors):
        # The parameters among the arguments are the graph's own: the check changes them in place.
        graph.reset_state()
        for module in graph.modules():
            if isinstance(module, Margin):
                module.seen = 0
        results = []
        for call in range(calls):
            output = graph(*tensors[call * arity : (call + 1) * arity])
            results += visible(graph, output)
        return tuple(results)

    verify = gradgradcheck if second_order else gradcheck
    assert verify(run, (*inputs, *parameters), fast_mode=projected)


@pytest.mark.parametrize("segment", SEGMENTS)
def test_a_construct(segment):
    check(build(SEGMENTS[segment]))


@each_row(
    "segment",
    ["gate-samples", "gate-all", "gate-elements", "gate-softmax", "each", "each-batched",
     "over", "slices", "slices-wider", "switch-argmax", "lstm", "state", "for-emit",
     "switch-rows", "gate-top", "while-rows",
     "until-learned", "nested-ports", *IN_SEQUENCES],
)  # fmt: skip
def test_a_construct_on_sequences(segment):
    check(build({**SEGMENTS, **IN_SEQUENCES}[segment]), lead=(2, 2))


@each_row("names", PAIRS + TRIPLES, ids="+".join)
def test_a_composition(names):
    check(build(*(SEGMENTS[name] for name in names)), projected=True)


@each_row("segment", TWICE)
def test_the_gradient_of_the_gradient(segment):
    check(build(SEGMENTS[segment]), projected=True, second_order=True)
