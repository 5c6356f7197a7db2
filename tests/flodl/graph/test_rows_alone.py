"""In eval mode a row of a batch gets what it gets alone: values and gradients, by every method.

Tensors are float64, so 1e-9 of a value is far above rounding and far below any other row's share.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from torch import nn

from flodl.graph import (
    ArgmaxSelector,
    BatchArgmaxSelector,
    FlowBuilder,
    LearnedHalt,
    LoopBuilder,
    MapBuilder,
    NamedInputModule,
    SigmoidRouter,
    SoftmaxRouter,
    StateAdd,
    ThresholdHalt,
)

from .reference.agreement import draw_inputs
from .reference.recipe import Leaf, Loop, Switch
from .test_random_graphs import LEADS, RECIPES, build, examples

WIDTH, ROWS = 4, 9
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


class Mix(NamedInputModule):
    """A layer, and what is delivered by name."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward_named(self, x, refs):
        return torch.tanh(self.linear(x) + sum(refs.values()))


def layer():
    return nn.Linear(WIDTH, WIDTH)


def layers(count=3):
    return [nn.Sequential(layer(), nn.Tanh()), *(layer() for _ in range(count - 1))]


def grow():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ELU())


SEGMENTS = {
    "through": lambda b: b.through(layer()),
    "also": lambda b: b.also(layer()),
    "also_with": lambda b: b.also_with(layer(), layer()),
    "fork": lambda b: b.fork(layer()).tag("side").through(Mix()).using("side"),
    "split": lambda b: b.split(layers()).merge("add"),
    "merge": lambda b: b.split(layers()).merge("mean"),
    "tag": lambda b: b.tag("s", keep=False).through(layer()).through(Mix()).using("s"),
    "tag_group": lambda b: b.split(layers()).tag_group("g").merge("add").also(Mix()).using("g_1"),
    "using": lambda b: b.through(Mix()).using("m").through(layer()).tag("m"),
    "entry": lambda b: b.entry("first"),
    "input": lambda b: b.input("aux").through(Mix()).using("aux"),
    "internal": lambda b: b.tag("s").internal("s"),
    "label": lambda b: b.label("whole").also(FlowBuilder.from_(layer()).label("part").build()),
    "verbose": lambda b: b.verbose(False).through(StateAdd()),
    "loop_body": lambda b: b.tag("s").loop_body(Mix()).until_cond(LearnedHalt(WIDTH), 5).using("s"),
    "for_n": lambda b: b.loop_body(grow()).for_n(3),
    "while_cond": lambda b: b.loop_body(grow()).while_cond(ThresholdHalt(0.8), 6),
    "until_cond": lambda b: b.loop_body(grow()).until_cond(ThresholdHalt(0.8), 6),
    "gate": lambda b: b.gate(SigmoidRouter(WIDTH, 3), layers()),
    "gate, top 1": lambda b: b.gate(SoftmaxRouter(WIDTH, 3), layers(), top_k=1),
    "gate, top 2": lambda b: b.tag("s").gate(SoftmaxRouter(WIDTH, 3), layers(), top_k=2).using("s"),
    "switch": lambda b: b.switch(ArgmaxSelector(WIDTH, 3), layers()),
    "switch, using": lambda b: b.tag("s").switch(ArgmaxSelector(WIDTH, 3), layers()).using("s"),
    "map": lambda b: b.map(layer()).each(),
    "each": lambda b: b.map(layer()).batched().each(),
    "over": lambda b: b.tag("s").through(layer()).map(layer()).over("s"),
    "slices": lambda b: b.map(nn.Linear(2, 2)).slices(2),
    "batched": lambda b: b.map(nn.Linear(2, 2)).batched().slices(2),
}
BATCH_WIDE = {
    "batch_switch": lambda b: b.batch_switch(BatchArgmaxSelector(WIDTH, 3), layers()),
    "batch_while_cond": lambda b: b.loop_body(grow()).batch_while_cond(ThresholdHalt(0.8), 6),
    "batch_until_cond": lambda b: b.loop_body(grow()).batch_until_cond(ThresholdHalt(0.8), 6),
}
BUILDING = {"from_", "build"}  # every graph uses them


def make(segments, seed):
    torch.manual_seed(seed)
    builder = FlowBuilder.from_(layer())
    for segment in segments:
        builder = segment(builder)
    graph = builder.build().double().eval()
    with torch.no_grad():
        for parameter in graph.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return graph


def computed(graph, calls, weights):
    """Outputs of some calls in a row, and the gradients of all inputs and parameters."""
    graph.reset_state()
    graph.zero_grad()
    calls = [[x.detach().requires_grad_() for x in inputs] for inputs in calls]
    outputs = [graph(*inputs) for inputs in calls]
    sum((y * w).sum() for y, w in zip(outputs, weights, strict=True)).backward()
    inputs = [x.grad if x.grad is not None else torch.zeros_like(x) for call in calls for x in call]
    parameters = [
        torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in graph.parameters()
    ]
    return [y.detach() for y in outputs], inputs, parameters


def row(tensors, index):
    return [tensor[index : index + 1] for tensor in tensors]


def differences(graph, calls):
    """Names of what differs between a batch and its rows, one by one."""
    with torch.no_grad():
        graph.reset_state()
        weights = [torch.randn_like(graph(*inputs)) for inputs in calls]
    whole = computed(graph, calls, weights)
    rows = [
        computed(graph, [row(inputs, index) for inputs in calls], row(weights, index))
        for index in range(len(weights[0]))
    ]
    joined = zip((torch.cat, torch.cat, sum), zip(*rows, strict=True), strict=True)
    alone = [list(map(join, zip(*parts, strict=True))) for join, parts in joined]
    return [
        f"{what} {index}"
        for what, seen, expected in zip(("output", "input", "parameter"), whole, alone, strict=True)
        for index, (a, b) in enumerate(zip(seen, expected, strict=True))
        if not torch.allclose(a, b, **CLOSE)
    ]


def batch_of(graph, lead, seed):
    generator = torch.Generator().manual_seed(seed)
    return [
        [
            torch.randn(ROWS, *lead, WIDTH, dtype=torch.float64, generator=generator)
            for _ in graph.topology.inputs
        ]
        for _ in range(2)
    ]


def test_every_method_of_the_builders_is_tried():
    builders = (FlowBuilder, LoopBuilder, MapBuilder)
    methods = {name for builder in builders for name in vars(builder) if not name.startswith("_")}
    tried = {name.partition(",")[0] for name in (*SEGMENTS, *BATCH_WIDE)}
    assert tried == methods - BUILDING


@pytest.mark.parametrize("name", SEGMENTS)
def test_rows_alone_give_what_they_give_in_a_batch(name):
    for seed in range(3):
        for lead in ((), (3,)):
            graph = make([SEGMENTS[name]], seed)
            assert not differences(graph, batch_of(graph, lead, seed))


def test_so_do_several_methods_in_a_row():
    names = ["switch", "also", "while_cond", "gate, top 2", "using", "until_cond", "slices", "gate"]
    for seed in range(3):
        graph = make([SEGMENTS[name] for name in names], seed)
        assert not differences(graph, batch_of(graph, (), seed))


@pytest.mark.parametrize("name", BATCH_WIDE)
def test_only_batch_wide_methods_let_rows_decide_for_each_other(name):
    graphs = [make([BATCH_WIDE[name]], seed) for seed in range(3)]
    assert any(differences(graph, batch_of(graph, (), 0)) for graph in graphs)


def by_rows(recipe):
    """Whether nothing in a recipe looks at several rows at once."""
    together = ("centred", "global", "lstm", "gru")
    leaves = [module for module in recipe.modules() if isinstance(module, Leaf)]
    return not any(leaf.kind in together for leaf in leaves) and not any(
        step.batch for step in recipe.all_steps() if isinstance(step, (Loop, Switch))
    )


@examples(12)
@given(RECIPES.filter(by_rows), LEADS)
def test_rows_of_random_graphs_give_alone_what_they_give_in_a_batch(recipe, lead):
    graph = build(recipe).eval()
    rows = (5, *lead[1:])
    calls = [[x.detach() for x in draw_inputs(recipe, rows, seed)] for seed in (0, 1)]
    assert not differences(graph, calls)
