"""The interpreter itself, on values worked out by hand; the graph must give the same ones."""

from __future__ import annotations

import torch
from torch import nn

from flodl import (
    FixedSelector,
    LoopBody,
    NamedInputModule,
    SigmoidRouter,
    SoftmaxRouter,
    StateAdd,
    ThresholdHalt,
)
from tests.rows import each_row

from .assembly import Assembly
from .interpreter import Reference
from .recipe import (
    Also,
    AlsoWith,
    Fork,
    Gate,
    Init,
    Input,
    Leaf,
    Loop,
    Map,
    Nested,
    Recipe,
    Ref,
    Split,
    Switch,
    Through,
)


def double(x):
    return 2 * x


def triple(x):
    return 3 * x


class AddRefs(NamedInputModule):
    def forward_named(self, x, refs):
        return x + sum(refs.values())


class EmittingDoubler(LoopBody):
    def step(self, x, refs, emit):  # noqa: ARG002  # the interface
        emit.publish("double", 2 * x)
        emit.publish("quad", 4 * x)
        return 2 * x


class Always(nn.Module):
    """A condition, or weights, that do not look at the stream."""

    def __init__(self, *values):
        super().__init__()
        self.values = torch.tensor(values, dtype=torch.float64)

    def forward(self, x):  # noqa: ARG002  # the interface
        return self.values


class PerSample(nn.Module):
    """Weights ``[B, 2]`` on streams of any rank: sample b gets b + 1 and ten times that."""

    def forward(self, x):
        first = torch.arange(1.0, len(x) + 1, dtype=x.dtype)
        return torch.stack([first, 10 * first], -1)


def linear(weight, bias):
    layer = nn.Linear(len(weight[0]), len(weight)).double()
    layer.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    return layer


def with_identity(router):
    """A router whose projection passes its input on."""
    (layer,) = (module for module in router.modules() if isinstance(module, nn.Linear))
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return router.double()


EYE3 = [[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]]
PARTS = {
    "double": double,
    "triple": triple,
    "refs": AddRefs(),
    "state": StateAdd(),
    "emit": EmittingDoubler(),
    "never": Always(-1.0),
    "above half": ThresholdHalt(0.5),
    "above two": ThresholdHalt(2.0),
    "above ten": ThresholdHalt(10.0),
    "halves": Always(0.5, 0.5),
    "per sample": PerSample(),
    "softmax": with_identity(SoftmaxRouter(2, 2)),
    "sigmoid": with_identity(SigmoidRouter(2, 2)),
    "second": FixedSelector(1),
    "eye": linear(EYE3, [0.0, 0, 0]),
    "eye + 1": linear(EYE3, [1.0, 1, 1]),
    "ends": linear([[1.0, 0], [0, 1.0], [1.0, 1.0]], [0.0, 0, 0]),
    "relu": torch.relu,
}
SLOTS = {name: slot for slot, name in enumerate(PARTS)}


def part(name):
    return Leaf(SLOTS[name], "emitter" if name == "emit" else "hand-made", 2, 2)


def refs(*tags):
    return tuple(map(Ref, tags))


def through(name, *, using=(), tags=()):
    return Through(module=part(name), refs=refs(*using), tags=tags)


def loop(body, kind, limit, halt=None, **more):
    return Loop(body=part(body), kind=kind, limit=limit, halt=halt and part(halt), **more)


def gate(router):
    return Gate(router=part(router), experts=(part("double"), part("triple")))


def split(how):
    return Split(branches=(part("double"), part("triple")), how=how)


CONTEXT = Also(module=part("double"), tags=("ctx",))  # three times the stream
MEMORY = through("state", using=["m"], tags=("m",))
COUNTER = Nested(99, Recipe((MEMORY,), (2,)))

STEPS_INPUTS_OUTPUTS = {
    "also": ([through("eye"), Also(module=part("eye + 1"))], [[[1, 2, 3]]], [[3, 5, 7]]),
    "also with": (
        [AlsoWith(skip=part("double"), main=part("refs"), refs=refs("old"), tags=("old",))],
        [[[1, 2]], [[1, 2]]], [[3, 6], [6, 12]],
    ),
    "split, add": ([split("add")], [[[1, 2]]], [[5, 10]]),
    "split, mean": ([split("mean")], [[[1, 2]]], [[2.5, 5]]),
    "reference": ([CONTEXT, through("refs", using=["ctx"])], [[[3, 5]]], [[18, 30]]),
    "reference of a loop": (
        [CONTEXT, loop("refs", "for", 3, refs=refs("ctx"))], [[[2, 3]]], [[24, 36]],
    ),
    "for": ([loop("double", "for", 3)], [[[1, 2]]], [[8, 16]]),
    "while": ([loop("double", "while", 20, "above ten")], [[[1, 2]]], [[8, 16]]),
    "while, not once": ([loop("double", "while", 20, "above half")], [[[1, 2]]], [[1, 2]]),
    "while, strictly above": ([loop("double", "while", 20, "above two")], [[[1, 2]]], [[2, 4]]),
    "until, once": ([loop("double", "until", 20, "above half")], [[[1, 2]]], [[2, 4]]),
    "while, to the limit": ([loop("double", "while", 5, "never")], [[[1, 2]]], [[32, 64]]),
    "state": ([MEMORY], [[[1, 2]]] * 3, [[1, 2], [2, 4], [3, 6]]),
    "state with a first value": (
        [Through(module=part("state"), refs=(Ref("m", Init(0.5, False)),), tags=("m",))],
        [[[1, 2]]] * 2, [[1.5, 2.5], [2.5, 4.5]],
    ),
    "state of a nested graph that stands twice": (
        [Through(module=COUNTER), Through(module=COUNTER)],
        [[[1, 2]]] * 2, [[2, 4], [6, 12]],
    ),
    "inputs": (
        [Input(names=("a", "b")), through("refs", using=["a", "b"])],
        [[[1, 1], [10, 10], [100, 100]]], [[111, 111]],
    ),
    "fork": ([Fork(module=part("ends"), tags=("s",)), through("relu")], [[[1, -2]]], [[1, 0]]),
    "gate": ([gate("halves")], [[[2, 4]]], [[5, 10]]),
    "gate, softmax": ([gate("softmax")], [[[1, 2]]], [[2.7310586, 5.4621172]]),
    "gate, sigmoid": ([gate("sigmoid")], [[[1, 2]]], [[4.1045084, 8.2090168]]),
    "switch": (
        [Switch(router=part("second"), branches=(part("double"), part("triple")))],
        [[[2, 3]]], [[6, 9]],
    ),
    "map each": ([Map(body=part("double"), kind="each")], [[[1, 2]]], [[2, 4]]),
    "map slices": (
        [Map(body=part("ends"), kind="slices", argument=2)], [[[1, 2, 3, 4]]],
        [[1, 2, 3, 3, 4, 7]],
    ),
    "map over": (
        [CONTEXT, through("triple"), Map(body=part("double"), kind="over", argument="ctx")],
        [[[1, 2]]], [[6, 12]],
    ),
}  # fmt: skip


def rows(*values):
    return [torch.tensor([value], dtype=torch.float64) for value in values]


@each_row("which", STEPS_INPUTS_OUTPUTS)
def test_values_worked_out_by_hand(which):
    steps, calls, outputs = STEPS_INPUTS_OUTPUTS[which]
    recipe = Recipe(tuple(steps), tuple(len(value) for value in calls[0]))
    parts = {SLOTS[name]: part for name, part in PARTS.items()}
    reference, graph = Reference(recipe, parts), Assembly(parts).build(recipe)
    for inputs, expected in zip(calls, rows(*outputs), strict=True):
        for run in (reference, graph):
            torch.testing.assert_close(run(*rows(*inputs)), expected, rtol=0, atol=1e-6)


def test_every_sample_is_weighted_by_its_own_row():
    recipe = Recipe((gate("per sample"),), (4,))
    parts = {SLOTS[name]: part for name, part in PARTS.items()}
    x = torch.ones(3, 5, 4, dtype=torch.float64)
    expected = x * torch.tensor([32.0, 64, 96], dtype=x.dtype).view(3, 1, 1)
    assert torch.equal(Reference(recipe, parts)(x), expected)
    assert torch.equal(Assembly(parts).build(recipe)(x), expected)


@each_row(("kind", "limit", "tests"), [("while", 5, 5), ("until", 5, 4), ("until", 1, 0)])
def test_how_often_a_condition_is_asked(kind, limit, tests):
    recipe = Recipe((loop("double", kind, limit, "never"),), (2,))
    parts = {SLOTS[name]: part for name, part in PARTS.items()}
    reference, graph = Reference(recipe, parts), Assembly(parts).build(recipe)
    for run in (reference, graph):
        assert run(*rows([1.0, 2.0])).tolist() == [[2.0**limit, 2.0 ** (limit + 1)]]
    assert len(reference.traces.get("loop_2/halt", [])) == tests
    assert len(graph.traces("loop_2/halt") or []) == tests


def test_what_loops_publish():
    recipe = Recipe((loop("emit", "for", 3),), (2,))
    parts = {SLOTS[name]: part for name, part in PARTS.items()}
    reference, graph = Reference(recipe, parts), Assembly(parts).build(recipe)
    for run in (reference, graph):
        run(*rows([1.0, 2.0]))
    for traces in (reference.traces.get, graph.traces):
        assert traces("double")[0].tolist() == [[2, 4]]
        assert traces("quad")[2].tolist() == [[16, 32]]
        assert traces("zzz") is None
