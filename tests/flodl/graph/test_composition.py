"""Random compositions against a slow interpreter, and gradients against finite differences."""

from __future__ import annotations

import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from flodl.graph import FlowBuilder
from tests.rows import each_row

WIDTH = 3

SPLIT = st.tuples(
    st.just("split"), st.integers(2, 4), st.sampled_from(["add", "mean"]), st.booleans()
)
STEPS = st.lists(
    st.tuples(
        st.one_of(
            st.tuples(st.just("through")), st.tuples(st.just("also")),
            st.tuples(st.just("also_with")), SPLIT,
        ),
        st.booleans(),
    ),
    max_size=8,
)  # fmt: skip


def layer():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double()


def describe(steps):
    """Build the graph, and list for the interpreter the same steps with their modules."""
    entry = layer()
    builder = FlowBuilder.from_(entry)
    plan = [("through", [entry], None, None)]
    for index, (step, tagged) in enumerate(steps):
        kind = step[0]
        count = {"also_with": 2, "split": step[1] if kind == "split" else 0}.get(kind, 1)
        parts = [layer() for _ in range(count)]
        if kind == "split":
            builder.split(parts)
            if step[3]:
                builder.tag_group(f"group{index}")
            builder.merge(step[2])
        else:
            getattr(builder, kind)(*parts)
        if tagged:
            builder.tag(f"t{index}")
        plan.append((kind, parts, step[2] if kind == "split" else None, f"t{index}"))
    return builder.build(), plan


def interpret(plan, x):
    """The meaning of every step, written out."""
    seen = {}
    for kind, parts, how, tag in plan:
        outputs = [part(x) for part in parts]
        if kind == "through":
            x = outputs[0]
        elif kind == "also":
            x = x + outputs[0]
        else:
            total = outputs[0]
            for output in outputs[1:]:
                total = total + output
            x = total / len(outputs) if how == "mean" else total
        seen[tag] = x
    return x, seen


@settings(max_examples=60)
@given(STEPS)
def test_any_composition_computes_what_its_steps_mean(steps):
    graph, plan = describe(steps)
    x = torch.randn(2, WIDTH, dtype=torch.float64, requires_grad=True)
    y, seen = interpret(plan, x)
    result = graph(x)
    assert torch.equal(result, y)
    for name in graph.tag_names():
        if not name.startswith("group"):
            assert torch.equal(graph.tagged(name), seen[name])
    wanted = [x, *graph.parameters()]
    ours = torch.autograd.grad(result.sum(), wanted)
    theirs = torch.autograd.grad(y.sum(), wanted)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@each_row(
    "steps",
    [
        [("through",)],
        [("also",)],
        [("also_with",)],
        [("split", 3, "add", False)],
        [("split", 3, "mean", True)],
    ],
    ids=["through", "also", "also_with", "merge-add", "merge-mean"],
)
def test_gradients_agree_with_finite_differences(steps):
    graph, _ = describe([(step, True) for step in steps])
    x = torch.randn(2, WIDTH, dtype=torch.float64, requires_grad=True)
    parameters = dict(graph.named_parameters())

    def run(x, *values):
        named = dict(zip(parameters, values, strict=True))
        return torch.func.functional_call(graph, named, (x,))

    assert torch.autograd.gradcheck(run, (x, *parameters.values()))
