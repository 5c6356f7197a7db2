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
    BatchArgmaxSelector,
    FixedSelector,
    LearnedHalt,
    Reshape,
    SigmoidRouter,
    SoftmaxRouter,
    StateAdd,
    ThresholdHalt,
)
from tests.rows import each_row

from .layers import Bias, Recorder, column, double, memory, start, triple


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


# --- Gates of the largest weights ---------------------------------------------------------------


def test_a_gate_of_the_largest_weights_runs_each_expert_on_the_rows_that_use_it():
    weights = torch.tensor([[0.5, 0.25, 0.75], [0, 2, -1], [1, 2, 0.5]])
    experts = [Recorder(double), Recorder(triple), Recorder()]
    graph = start().gate(lambda _: weights, experts, top_k=2).build()
    assert graph(column(1, 10, 100)).flatten().tolist() == [1.75, 60, 800]
    assert [expert.seen[0].flatten().tolist() for expert in experts] == [
        [1, 10, 100],
        [10, 100],
        [1],
    ]


def test_rows_of_a_gate_have_all_leading_dimensions_of_the_weights():
    experts = [Recorder(double), Recorder(triple)]
    for lead, seen in (((2,), [[1, 3, 4]] * 2), ((2, 3), [[3, 4]] * 2)):
        weights = torch.ones(*lead, 2)
        weights[0, ..., 1] = weights[1:, ..., 0] = 0
        graph = start().gate(lambda _, w=weights: w, experts, top_k=1).build()
        x = torch.randn(2, 3, 4)
        torch.testing.assert_close(graph(x), torch.stack([2 * x[0], 3 * x[1]]))
        assert [list(expert.seen[-1].shape) for expert in experts] == seen


def test_a_gate_of_all_weights_is_the_gate():
    experts = [nn.Linear(2, 3), nn.Linear(2, 3)]
    router = SoftmaxRouter(2, 2)
    x = torch.randn(5, 2)
    everyone = start().gate(router, experts).build()(x)
    torch.testing.assert_close(start().gate(router, experts, top_k=2).build()(x), everyone)


def test_experts_without_rows_do_not_run_and_others_learn_from_their_rows():
    weights = torch.tensor([[3.0, 1, 0], [2, 1, 0]], requires_grad=True)
    experts = [Bias(), Bias(), Bias()]
    graph = start().gate(lambda _: weights, experts, top_k=1).build()
    graph(column(10, 20)).sum().backward()
    assert [
        expert.b.grad if index else expert.b.grad.item() for index, expert in enumerate(experts)
    ] == [
        5,
        None,
        None,
    ]
    assert weights.grad.tolist() == [[10, 0, 0], [20, 0, 0]]


@each_row(
    ("weights", "told"),
    [
        (torch.ones(2), r"weights \[rows, \.\.\., 2\].*returned \[2\]"),
        (torch.ones(3, 3), r"\[3, 3\]"),
        (torch.ones(2, 2), r"like its stream \[3, 4\]; its router returned \[2, 2\]"),
        (torch.tensor([[1.0, 2], [1, 2], [1, float("nan")]]), "NaN for row 2"),
    ],
)
def test_weights_that_choose_no_expert_are_refused(weights, told):
    graph = start().gate(lambda _: weights, [double, triple], top_k=1).build()
    with pytest.raises(ValueError, match=f"gate_2: .*{told}"):
        graph(torch.ones(3, 4))


@each_row("top_k", [0, 3, -1, 1.0, True, "2"])
def test_a_number_of_experts_that_there_is_not_is_refused(top_k):
    with pytest.raises(BuildError, match=rf"gate: top_k is from 1 to 2.*: {top_k!r}"):
        start().gate(double, [double, triple], top_k=top_k).build()


# --- Switches -----------------------------------------------------------------------------------


@pytest.mark.case("runtime", 16)
def test_a_switch_runs_the_branch_its_router_names():
    chosen = start().switch(FixedSelector(1), [double, triple]).build()
    assert chosen(vector(2, 3)).tolist() == [6, 9]
    beyond = start().switch(FixedSelector(2), [double, triple]).build()
    with pytest.raises(IndexError, match=r"switch_2.*chose 2 for row 0; there are 2"):
        beyond(vector(2, 3))
    several = start().batch_switch(constant(0, 1), [double, triple]).build()
    with pytest.raises(ValueError, match=r"switch_2.*\[2\].*switch takes one for each row"):
        several(vector(2, 3))


@each_row("grad", [True, False])
def test_each_row_goes_to_its_own_branch_which_runs_once(grad):
    branches = [Recorder(double), Recorder(triple), Recorder()]
    graph = start().switch(constant(1, 0, 1, 0), branches).build()
    x = torch.arange(24.0).reshape(4, 2, 3)
    with torch.set_grad_enabled(grad):
        y = graph(x)
    assert torch.equal(y, x * torch.tensor([3.0, 2, 3, 2]).reshape(4, 1, 1))
    assert [[list(seen.shape) for seen in branch.seen] for branch in branches] == [
        [[2, 2, 3]],
        [[2, 2, 3]],
        [],
    ]


def test_a_batch_wide_switch_gives_the_whole_batch_to_one_branch():
    graph = start().batch_switch(constant(1), [double, triple]).build()
    assert graph(vector(2, 3)).tolist() == [6, 9]
    assert graph(torch.tensor(2.0)).item() == 6


def test_a_batch_without_rows_takes_the_shape_of_the_first_branch():
    branches = [nn.Linear(2, 3), nn.Linear(2, 3)]
    x = torch.zeros(0, 2)
    assert start().switch(FixedSelector(1), branches).build()(x).shape == (0, 3)
    assert start().gate(SoftmaxRouter(2, 2), branches, top_k=2).build()(x).shape == (0, 3)


@each_row("value", [True, torch.int8, torch.int32, torch.uint8, torch.int64])
def test_an_index_is_any_integer_or_a_boolean(value):
    choice = torch.tensor([0, 1, 1])
    choice = choice.bool() if value is True else choice.to(value)
    for shape in ([3], [3, 1]):
        graph = (
            start().switch(lambda _, shape=shape: choice.reshape(shape), [double, triple]).build()
        )
        assert graph(column(1, 2, 3)).flatten().tolist() == [2, 6, 9]
    wide = start().batch_switch(lambda _: choice[1:2, None], [double, triple]).build()
    assert wide(vector(1)).tolist() == [3]


@each_row(
    ("choice", "told"),
    [
        (torch.tensor(1), r"\[\] for 3 rows; a switch needs \[3\].*batch_switch"),
        (torch.tensor([1]), r"\[1\] for 3 rows"),
        (torch.ones(3, 2, dtype=torch.int64), r"\[3, 2\] for 3 rows"),
        (torch.ones(1, 3, dtype=torch.int64), r"\[1, 3\] for 3 rows"),
        (torch.ones(3), "float32; an index is an integer"),
        (torch.ones(3, dtype=torch.complex64), "complex64; an index is an integer"),
    ],
)
def test_choices_that_are_not_one_integer_for_each_row_are_refused(choice, told):
    graph = start().switch(lambda _: choice, [double, triple]).build()
    with pytest.raises(ValueError, match=f"switch_2: the router returned {told}"):
        graph(column(1, 2, 3))


def test_a_tensor_without_rows_is_refused():
    graph = start().switch(constant(0), [double, triple]).build()
    with pytest.raises(
        ValueError, match=r"switch_2 got a tensor .* without rows; use batch_switch"
    ):
        graph(torch.tensor(1.0))


@each_row("choice", [[0, 7, 1], [0, 2, 9]])
def test_an_index_beyond_the_branches_is_refused_with_both_numbers(choice):
    graph = start().switch(constant(*choice), [double, triple]).build()
    number = max(choice[:2])
    with pytest.raises(IndexError, match=rf"switch_2.*chose {number} for row 1; there are 2"):
        graph(column(1, 2, 3))


@each_row("value", [float("nan"), float("inf"), -float("inf"), -1.0, 0.5, -1])
def test_an_index_that_is_none_is_refused(value):
    for kind in ("switch", "batch_switch"):
        graph = getattr(start(), kind)(constant(value), [double, triple]).build()
        with pytest.raises(ValueError, match=f"switch_2: .*{value}"):
            graph(vector(1))


@each_row("grad", [True, False])
def test_branches_of_different_types_give_the_wider_one(grad):
    x = torch.tensor([[1.0, 2], [-1, 2], [3, 0]])
    weights = torch.tensor([[0.5, 0.2], [0.1, 0.7], [0.5, 0.2]])
    for choose in (
        lambda branches: start().switch(constant(0, 1, 0), branches),
        lambda branches: start().gate(lambda _: weights, branches, top_k=1),
    ):
        for order in (1, -1):
            graph = choose([nn.Identity(), nn.Linear(2, 2)][::order]).build()
            plain = graph(x)
            with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16):
                y = graph(x)
            assert y.dtype == torch.float32
            torch.testing.assert_close(y, plain, atol=0.05, rtol=0.05)


@each_row("grad", [True, False])
def test_branches_that_do_not_fit_together_are_refused(grad):
    x = torch.ones(4, 2)
    for branches, told in (
        ([nn.Linear(2, 3), nn.Linear(2, 4)], r"different shapes: \[3\] and \[4\]"),
        ([double, lambda x: x[:1]], r"choice 1 returned \[1, 2\] for 2 rows"),
        ([double, lambda x: x.sum()], r"choice 1 returned \[\] for 2 rows"),
    ):
        graph = start().switch(constant(0, 1, 0, 1), branches).build()
        with torch.set_grad_enabled(grad), pytest.raises(ValueError, match=f"switch_2: .*{told}"):
            graph(x)
    alone = start().switch(FixedSelector(1), [double, lambda x: x[:1]]).build()
    with pytest.raises(ValueError, match=r"\[1, 2\] for 4 rows"):
        alone(x)


def test_a_graph_with_carried_state_is_no_branch_of_rows_that_part():
    inner = memory(start()).build()
    for describe, instead in (
        (lambda: start().switch(double, [triple, inner]), "batch_switch"),
        (lambda: start().gate(double, [triple, nn.Sequential(inner)], top_k=1), "without top_k"),
    ):
        with pytest.raises(BuildError, match=rf"s\.1 carries 'm' from call to call.*{instead}"):
            describe().build()
    assert start().batch_switch(double, [triple, inner]).build().has_state()


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
    for kind, selector in (("switch", ArgmaxSelector), ("batch_switch", BatchArgmaxSelector)):
        graph = getattr(start(), kind)(projected(selector, choices, choices), branches).build()
        compiled = torch.compile(graph, fullgraph=True, backend="eager")
        for favourite in range(choices):
            x = torch.eye(choices)[favourite : favourite + 1] * 5
            assert torch.equal(compiled(x), branches[favourite](x))
            assert torch.equal(graph(x), branches[favourite](x))


@pytest.mark.usefixtures("fresh_compiler")
def test_rows_choose_anew_in_every_call_of_a_compiled_switch_and_gate():
    branches = [nn.Linear(2, 2), nn.Tanh(), Bias(2, 1.0)]
    builder = start().switch(ArgmaxSelector(2, 3), branches)
    graph = builder.gate(SoftmaxRouter(2, 3), branches, top_k=2).build()
    compiled = torch.compile(graph, fullgraph=True, backend="eager")
    for rows in (6, 6, 9):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(compiled(x), graph(x))


# --- Routers, selectors, conditions, targets ----------------------------------------------------


def test_references_are_added_before_the_projection():
    x, by = vector(1, 2), vector(3, -1)
    for kind in (SoftmaxRouter, SigmoidRouter):
        router = projected(kind)
        assert torch.equal(router(x, {"by": by}), router(x + by))
        assert torch.equal(router(x, {"a": by, "b": by}), router(x + 2 * by))
    assert projected(ArgmaxSelector)(x, {"by": by}).item() == 0
    assert projected(ArgmaxSelector)(x).item() == 1


def test_argmax_decides_for_each_row_and_prefers_the_lowest_index():
    selector = projected(ArgmaxSelector)
    assert selector(torch.tensor([[5.0, 0], [0, 3], [2, 2]])).tolist() == [0, 1, 0]
    # In the first row the largest single logit says 0, the average says 1.
    assert selector(
        torch.tensor([[[5.0, 0], [0, 3], [0, 3]], [[1, 0], [0, 0], [0, 0]]])
    ).tolist() == [1, 0]
    wide = projected(ArgmaxSelector, 3, 3)
    assert wide(vector(0, 4, 4)[None]).tolist() == [1]


def test_batch_argmax_averages_the_batch_and_prefers_the_lowest_index():
    selector = projected(BatchArgmaxSelector)
    # The largest single logit says 0, the average says 1.
    assert selector(torch.tensor([[5.0, 0], [0, 3], [0, 3]])).item() == 1
    assert selector(torch.tensor([[[5.0, 0]], [[0, 3]], [[0, 3]]])).item() == 1
    assert selector(torch.tensor([[2.0, 2], [1, 1]])).item() == 0
    wide = projected(BatchArgmaxSelector, 3, 3)
    assert wide(vector(0, 4, 4)).item() == 1


def test_argmax_serves_a_switch_with_references():
    builder = start().input("by").switch(projected(ArgmaxSelector), [double, triple]).using("by")
    graph = builder.build()
    assert graph(vector(1, 2)[None], vector(0, 0)).tolist() == [[3, 6]]
    assert graph(vector(1, 2)[None], vector(3, 0)).tolist() == [[2, 4]]


def test_threshold_halt_measures_the_largest_element_of_each_row():
    assert ThresholdHalt(2)(torch.tensor([[1.0, 5], [-9, 0]])).tolist() == [3, -2]
    assert ThresholdHalt(2)(torch.tensor([[[1.0, 5], [-9, 0]]])).tolist() == [3]
    assert ThresholdHalt(2)(vector(-9, 1)).tolist() == [-11, -1]


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
    BatchArgmaxSelector(4, 3),
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
