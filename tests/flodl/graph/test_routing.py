"""Gates weigh experts, switches choose branches."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from flodl.errors import BuildError
from flodl.graph import FlowBuilder
from flodl.graph.routing import (
    ArgmaxSelector,
    FixedSelector,
    LearnedHalt,
    Reshape,
    SigmoidRouter,
    SoftmaxRouter,
    StateAdd,
    ThresholdHalt,
)
from tests.rows import each_row

from .layers import Bias, double, start, triple


def vector(*values):
    return torch.tensor([float(value) for value in values])


def constant(*values):
    """A router that always says this."""
    return lambda _: torch.tensor(values)


def projected(kind, in_features=2, choices=2):
    """A router whose projection is the identity."""
    router = kind(in_features, choices)
    with torch.no_grad():
        router.projection.weight.copy_(torch.eye(choices, in_features))
        router.projection.bias.zero_()
    return router


# --- Gates --------------------------------------------------------------------------------------


@pytest.mark.case("runtime", 14)
def test_a_gate_weighs_its_experts():
    halves = start().gate(constant(0.5, 0.5), [double, triple]).build()
    assert halves(vector(2, 4)).tolist() == [5, 10]
    x = vector(1, 2)
    softmax = start().gate(projected(SoftmaxRouter), [double, triple]).build()
    torch.testing.assert_close(softmax(x), vector(2.7310586, 5.4621172), atol=1e-6, rtol=0)
    sigmoid = start().gate(projected(SigmoidRouter), [double, triple]).build()
    torch.testing.assert_close(sigmoid(x), vector(4.1045084, 8.2090168), atol=1e-6, rtol=0)


@pytest.mark.case("runtime", 15)
def test_each_sample_is_scaled_by_its_own_weights():
    weights = torch.tensor([[1.0, 0], [0, 1], [0.5, 0.5]])
    graph = start().gate(lambda _: weights, [double, triple]).build()
    x = torch.randn(3, 3, 4)
    expected = torch.stack([x[0] * 2, x[1] * 3, x[2] * 2.5])
    torch.testing.assert_close(graph(x), expected)


@each_row("lead", [(), (2,), (2, 3), (2, 3, 4)])
def test_weights_lead_with_any_of_the_leading_dimensions(lead):
    x = torch.randn(2, 3, 4)
    weights = torch.rand(*lead, 2)
    graph = start().gate(lambda _: weights, [double, triple]).build()
    spread = weights.reshape(*lead, *(1,) * (3 - len(lead)), 2)
    torch.testing.assert_close(graph(x), spread[..., 0] * 2 * x + spread[..., 1] * 3 * x)


@each_row(
    ("weights", "numbers"),
    [
        (torch.ones(3), r"2 experts.*\[3\]"),
        (torch.ones(2, 1), r"2 experts.*\[2, 1\]"),
        (torch.ones(2, 3), r"2 experts.*\[2, 3\]"),
        (torch.ones(4, 2), r"\[4, 2\].*\[2, 3\]"),
        (torch.ones(3, 2), r"\[3, 2\].*\[2, 3\]"),
        (torch.ones(2, 3, 1, 2), r"\[2, 3, 1, 2\].*\[2, 3\]"),
        (torch.ones(()), r"\[\]"),
    ],
)
def test_weights_that_fit_neither_experts_nor_outputs_are_refused(weights, numbers):
    graph = start().gate(lambda _: weights, [double, triple]).build()
    with pytest.raises(ValueError, match=numbers) as caught:
        graph(torch.ones(2, 3))
    assert "gate_2" in str(caught.value) + "".join(caught.value.__notes__)


def test_experts_of_different_shapes_are_refused():
    graph = start().gate(constant(0.5, 0.5), [nn.Linear(2, 3), nn.Linear(2, 4)]).build()
    with pytest.raises(ValueError, match=r"\[1, 3\].*\[1, 4\]"):
        graph(torch.ones(1, 2))
    # Shapes that would broadcast differ all the same.
    graph = start().gate(constant(0.5, 0.5), [double, lambda x: x[:1]]).build()
    with pytest.raises(ValueError, match=r"\[3, 2\].*\[1, 2\]"):
        graph(torch.ones(3, 2))


def test_router_and_all_experts_of_a_gate_are_trained():
    experts = [nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)]
    graph = start().gate(SoftmaxRouter(2, 3), experts).build()
    graph(torch.randn(4, 2)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in graph.parameters())
    assert set(graph.state_dict()) == {
        *(f"gate_2.router.projection.{kind}" for kind in ("weight", "bias")),
        *(f"gate_2.experts.{i}.{kind}" for i in range(3) for kind in ("weight", "bias")),
    }


def test_an_expert_may_return_a_tuple_led_by_a_tensor():
    graph = start().gate(constant(1.0, 1.0), [nn.GRU(2, 2), nn.Identity()]).build()
    assert graph(torch.randn(3, 2)).shape == (3, 2)


def test_the_weights_are_the_routers_own_affair():
    graph = start().gate(constant(2.0, -1.0), [double, triple]).build()
    assert graph(vector(1)).tolist() == [1]


# --- Switches -----------------------------------------------------------------------------------


@pytest.mark.case("runtime", 16)
def test_a_switch_runs_the_branch_its_router_names():
    chosen = start().switch(FixedSelector(1), [double, triple]).build()
    assert chosen(vector(2, 3)).tolist() == [6, 9]
    beyond = start().switch(FixedSelector(2), [double, triple]).build()
    with pytest.raises(IndexError, match=r"2.*2"):
        beyond(vector(2, 3))
    several = start().switch(constant(4.0, 1.0), [double, triple]).build()
    with pytest.raises(ValueError, match=r"\[2\]"):
        several(vector(2, 3))


def test_an_index_beyond_the_branches_is_refused_with_both_numbers():
    graph = start().switch(FixedSelector(7), [double, triple, double]).build()
    with pytest.raises(IndexError, match=r"7.*3"):
        graph(vector(1))


@each_row(("value", "expected"), [(0.0, 2), (0.99, 2), (1.0, 3), (1.99, 3), ([[1.0]], 3), (1, 3)])
def test_an_index_is_truncated_toward_zero(value, expected):
    graph = start().switch(constant(value), [double, triple]).build()
    assert graph(vector(1)).tolist() == [expected]


@each_row("value", [float("nan"), float("inf"), -float("inf"), -1.0, -0.5, -1])
def test_an_index_that_is_none_is_refused(value):
    graph = start().switch(constant(value), [double, triple]).build()
    with pytest.raises(ValueError, match=str(value)) as caught:
        graph(vector(1))
    assert "switch_2" in str(caught.value) + "".join(caught.value.__notes__)


def test_branches_that_are_not_chosen_neither_run_nor_learn():
    branches = [Bias(), Bias()]
    calls = []
    branches[0].register_forward_hook(lambda *_: calls.append(1))
    graph = start().switch(FixedSelector(1), branches).build()
    graph(torch.zeros(2, 1)).sum().backward()
    assert calls == []
    assert branches[0].b.grad is None
    assert branches[1].b.grad.tolist() == [2]


def test_router_and_branches_of_a_switch_are_registered_under_it():
    graph = start().switch(ArgmaxSelector(2, 2), [Bias(2), Bias(2)], name="route").build()
    assert set(graph.state_dict()) == {
        "route.router.projection.weight",
        "route.router.projection.bias",
        "route.branches.0.b",
        "route.branches.1.b",
    }
    tagged = start().gate(SoftmaxRouter(2, 2), [Bias(2), Bias(2)]).tag("mix").build()
    assert "mix/experts.1.b" in dict(tagged.qualified_parameters())


@each_row("kind", ["gate", "switch"])
def test_a_single_choice_is_refused(kind):
    with pytest.raises(BuildError, match=rf"{kind}: .*2.*1"):
        getattr(start(), kind)(FixedSelector(0), [double]).build()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("choices", [2, 3])
def test_a_compiled_switch_decides_anew_in_every_call(choices):
    branches = [double, triple, Bias(choices, 1.0)][:choices]
    graph = start().switch(projected(ArgmaxSelector, choices, choices), branches).build()
    compiled = torch.compile(graph, fullgraph=True, backend="eager")
    for favourite in range(choices):
        x = torch.eye(choices)[favourite : favourite + 1] * 5
        assert torch.equal(compiled(x), branches[favourite](x))
        assert torch.equal(graph(x), branches[favourite](x))


# --- Routers, selectors, conditions, targets ----------------------------------------------------


def test_references_are_added_before_the_projection():
    x, by = vector(1, 2), vector(3, -1)
    for kind in (SoftmaxRouter, SigmoidRouter):
        router = projected(kind)
        assert torch.equal(router(x, {"by": by}), router(x + by))
        assert torch.equal(router(x, {"a": by, "b": by}), router(x + 2 * by))
    assert projected(ArgmaxSelector)(x, {"by": by}).item() == 0
    assert projected(ArgmaxSelector)(x).item() == 1


def test_argmax_averages_the_batch_and_prefers_the_lowest_index():
    selector = projected(ArgmaxSelector)
    # The largest single logit says 0, the average says 1.
    assert selector(torch.tensor([[5.0, 0], [0, 3], [0, 3]])).item() == 1
    assert selector(torch.tensor([[[5.0, 0]], [[0, 3]], [[0, 3]]])).item() == 1
    assert selector(torch.tensor([[2.0, 2], [1, 1]])).item() == 0
    wide = projected(ArgmaxSelector, 3, 3)
    assert wide(vector(0, 4, 4)).item() == 1


def test_argmax_serves_a_switch_with_references():
    builder = start().input("by").switch(projected(ArgmaxSelector), [double, triple]).using("by")
    graph = builder.build()
    assert graph(vector(1, 2), vector(0, 0)).tolist() == [3, 6]
    assert graph(vector(1, 2), vector(3, 0)).tolist() == [2, 4]


def test_threshold_halt_measures_the_largest_element():
    assert ThresholdHalt(2)(torch.tensor([[1.0, 5], [-9, 0]])).item() == 3
    assert ThresholdHalt(2)(vector(-9, 1)).item() == -1


def test_learned_halt_gives_one_value_per_sample():
    halt = LearnedHalt(3)
    assert halt(torch.ones(5, 3)).shape == (5, 1)
    assert [name for name, _ in halt.named_parameters()] == [
        "projection.weight",
        "projection.bias",
    ]


def test_state_add_adds_whatever_it_is_given():
    assert StateAdd()(vector(1), {}).tolist() == [1]
    assert StateAdd()(vector(1)).tolist() == [1]
    assert StateAdd()(vector(1), {"a": vector(2), "b": vector(3)}).tolist() == [6]


def test_reshape_keeps_elements_and_order():
    graph = FlowBuilder.from_(Reshape(-1, 2, 3)).through(Reshape(2, 6)).build()
    x = torch.arange(12.0)
    assert graph(x).tolist() == [list(range(6)), list(range(6, 12))]
    transposed = torch.arange(6.0).reshape(2, 3).T
    assert Reshape(6)(transposed).tolist() == [0, 3, 1, 4, 2, 5]


EVERY = [
    SoftmaxRouter(4, 3),
    SigmoidRouter(4, 3),
    ArgmaxSelector(4, 3),
    FixedSelector(2),
    ThresholdHalt(0.5),
    LearnedHalt(4),
    StateAdd(),
    Reshape(-1, 2),
]


@pytest.mark.parametrize("module", EVERY, ids=lambda module: type(module).__name__)
def test_every_module_compiles_in_one_piece_copies_and_pickles(module):
    x = torch.randn(2, 4)
    expected = module(x)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), expected)
    assert torch.equal(copy.deepcopy(module)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(module))(x), expected)


def test_every_module_shows_its_settings():
    assert [repr(module).split("\n")[:2][-1].strip() for module in EVERY] == [
        "in_features=4, choices=3",
        "in_features=4, choices=3",
        "in_features=4, choices=3",
        "FixedSelector(index=2)",
        "ThresholdHalt(threshold=0.5)",
        "dim=4",
        "StateAdd()",
        "Reshape(shape=(-1, 2))",
    ]


@each_row(
    ("make", "message"),
    [
        (lambda: SoftmaxRouter(0, 2), "in_features must be an integer of at least 1, got 0"),
        (lambda: SigmoidRouter(4, 2.5), r"choices must be .*, got 2\.5"),
        (lambda: ArgmaxSelector(4, True), "choices must be .*, got True"),
        (lambda: FixedSelector(-1), "index must be .* at least 0, got -1"),
        (lambda: FixedSelector(0.0), r"index must be .*, got 0\.0"),
        (lambda: ThresholdHalt(float("nan")), "threshold must be a number, got nan"),
        (lambda: ThresholdHalt("1"), "threshold must be a number, got '1'"),
        (lambda: LearnedHalt(0), "dim must be .* at least 1, got 0"),
        (Reshape, "at least one dimension"),
        (lambda: Reshape(0, 2), r"positive integer or -1, got \(0, 2\)"),
        (lambda: Reshape((2, 3)), r"positive integer or -1, got \(\(2, 3\),\)"),
        (lambda: Reshape(-1, -1), r"only one dimension .*, got \(-1, -1\)"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
