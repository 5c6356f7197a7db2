"""References: tagged values delivered by name, within a pass."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from flodl.errors import BuildError
from flodl.graph import FlowBuilder
from flodl.graph.modules import LoopBody, NamedInputModule
from flodl.graph.routing import SoftmaxRouter, StateAdd
from tests.rows import each_row

from .layers import AddRef, double, eye, start, triple


class Witness(NamedInputModule):
    """Passes the stream on and remembers the references it was given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward_named(self, x, refs):
        self.seen.append(dict(refs))
        return x


class OnlyTheMethod(nn.Module):
    """Has ``forward_named`` without deriving from NamedInputModule."""

    def forward(self, x):
        return -x

    def forward_named(self, x, refs):
        return x + refs["ctx"]


class AddingBody(LoopBody):
    def step(self, x, refs, _):
        return x + refs["ctx"]


@pytest.mark.case("runtime", 3)
def test_a_reference_reaches_the_module_it_was_asked_for():
    graph = start().tag("ctx").through(AddRef("ctx")).using("ctx").build()
    assert graph(torch.tensor([3.0, 5])).tolist() == [6, 10]


@pytest.mark.case("runtime", 4)
def test_a_reference_is_the_same_in_every_iteration_of_a_loop():
    graph = start().tag("ctx").loop_body(AddRef("ctx")).for_n(3).using("ctx").build()
    assert graph(torch.tensor([2.0, 3])).tolist() == [8, 12]


def test_names_are_given_one_by_one_or_as_a_list_and_nothing_is_no_reference():
    x = torch.tensor([1.0])

    def network():
        return start().tag("a").through(double).tag("b").through(AddRef("a", "b"))

    assert network().using("a", "b").build()(x).tolist() == [5]
    assert network().using(["a", "b"]).build()(x).tolist() == [5]
    assert start().through(nn.ReLU()).using().build()(x).tolist() == [1]
    assert start().through(nn.ReLU()).using([]).build()(x).tolist() == [1]


def test_two_calls_of_using_add_up():
    builder = start().tag("a").through(double).tag("b").through(AddRef("a", "b"))
    assert builder.using("a").using("b").build()(torch.tensor([1.0])).tolist() == [5]


def test_a_gradient_flows_back_through_a_reference():
    layer = eye(2)
    graph = FlowBuilder.from_(layer).tag("ctx").through(AddRef("ctx")).using("ctx").build()
    graph(torch.ones(1, 2)).sum().backward()
    assert layer.bias.grad.tolist() == [2, 2]


def test_the_wire_of_a_reference_is_a_port_named_after_its_tag():
    graph = start().tag("ctx").through(AddRef("ctx")).using("ctx").build()
    assert [wire.port for wire in graph.topology.nodes[1].wires] == ["input", "ref_ctx"]


# --- Which module a reference goes to -----------------------------------------------------------


def test_after_also_the_module_gets_the_reference_and_the_sum_gets_the_tag():
    builder = start().tag("ctx").also(AddRef("ctx")).using("ctx").tag("sum")
    graph = builder.build()
    assert graph(torch.tensor([1.0])).tolist() == [3]
    assert graph.tagged("sum").tolist() == [3]


def test_after_also_with_the_main_module_gets_the_reference():
    graph = start().tag("ctx").also_with(double, AddRef("ctx")).using("ctx").build()
    assert graph(torch.tensor([1.0])).tolist() == [4]


def test_after_fork_the_branch_gets_the_reference():
    graph = start().tag("ctx").fork(AddRef("ctx")).using("ctx").tag("side").through(double)
    graph = graph.build()
    assert graph(torch.tensor([1.0])).tolist() == [2]
    assert graph.tagged("side").tolist() == [2]


def test_after_split_every_branch_gets_the_reference():
    builder = start().tag("ctx").split([AddRef("ctx"), AddRef("ctx"), AddRef("ctx")])
    graph = builder.using("ctx").merge("add").build()
    assert graph(torch.tensor([1.0])).tolist() == [6]


def test_the_first_module_can_have_references_to_inputs():
    graph = FlowBuilder.from_(AddRef("c")).input("c").using("c").build()
    assert graph(torch.tensor([1.0]), torch.tensor([5.0])).tolist() == [6]


# --- What accepts references --------------------------------------------------------------------


def test_a_named_input_module_is_called_so_that_its_hooks_fire():
    module = AddRef("ctx")
    calls = []
    module.register_forward_hook(lambda *_: calls.append(1))
    graph = start().tag("ctx").through(module).using("ctx").build()
    graph(torch.ones(1))
    assert calls == [1]


def test_a_named_input_module_without_references_gets_an_empty_mapping():
    witness = Witness()
    start().through(witness).build()(torch.ones(1))
    witness(torch.ones(1))
    assert witness.seen == [{}, {}]


def test_a_named_input_module_receives_exactly_the_names_it_uses():
    witness = Witness()
    builder = start().tag("a").through(double).tag("b").through(witness).using("b")
    builder.build()(torch.ones(1))
    assert list(witness.seen[0]) == ["b"]
    assert witness.seen[0]["b"].tolist() == [2]


def test_a_method_called_forward_named_suffices_and_serves_only_with_references():
    x = torch.tensor([3.0])
    with_reference = start().tag("ctx").through(OnlyTheMethod()).using("ctx").build()
    assert with_reference(x).tolist() == [6]
    assert start().tag("ctx").through(OnlyTheMethod()).build()(x).tolist() == [-3]


@each_row("body", [AddingBody, OnlyTheMethod, lambda: AddRef("ctx")])
def test_a_loop_passes_references_on_to_a_body_that_accepts_them(body):
    graph = start().tag("ctx").loop_body(body()).for_n(2).using("ctx").build()
    assert graph(torch.tensor([1.0])).tolist() == [3]


def test_a_loop_body_outside_a_loop_accepts_references_as_well():
    graph = start().tag("ctx").through(AddingBody()).using("ctx").build()
    assert graph(torch.tensor([1.0])).tolist() == [2]


def test_a_graph_with_inputs_accepts_references_of_their_names():
    inner = start().input("a", "b").through(AddRef("a")).using("a")
    inner = inner.through(double).through(AddRef("b")).using("b").build()
    outer = start().tag("b").through(triple).tag("a").through(inner).using("b", "a").build()
    # inner: (3 + a) * 2 + b with a = 3 and b = 1, in whatever order they are used
    assert outer(torch.tensor([1.0])).tolist() == [13]


def test_a_graph_with_inputs_can_be_the_body_of_a_loop():
    inner = start().input("c").through(AddRef("c")).using("c").build()
    graph = start().tag("c").loop_body(inner).for_n(3).using("c").build()
    assert graph(torch.tensor([1.0])).tolist() == [4]


def test_the_router_of_a_gate_gets_the_reference_and_the_experts_do_not():
    experts = [Witness(), Witness()]
    router = SoftmaxRouter(2, 2)
    router.projection = eye(2)
    graph = start().tag("ctx").gate(router, experts).using("ctx").build()
    graph(torch.tensor([1.0, 2]))
    assert [expert.seen for expert in experts] == [[{}], [{}]]
    alone = start().gate(router, [double, triple]).build()
    informed = start().tag("ctx").gate(router, [double, triple]).using("ctx").build()
    x = torch.tensor([1.0, 2])
    weights = torch.tensor([2.0, 4]).softmax(0)
    torch.testing.assert_close(informed(x), weights[0] * 2 * x + weights[1] * 3 * x)
    assert not torch.equal(alone(x), informed(x))


def test_the_router_of_a_switch_gets_the_reference():
    class Whole(AddRef):
        def forward_named(self, x, refs):
            return super().forward_named(x, refs).long()

    for kind in ("switch", "batch_switch"):
        switch = getattr(start().input("by"), kind)
        graph = switch(Whole("by"), [double, triple]).using("by").build()
        x = torch.tensor([0.5])
        assert graph(x, torch.tensor([0.0])).tolist() == [1.0]
        assert graph(x, torch.tensor([1.0])).tolist() == [1.5]


@each_row(
    ("describe", "message"),
    [
        (lambda: start().tag("c").through(nn.ReLU()).using("c"), "relu_2"),
        (lambda: start().tag("c").through(double).using("c"), "lambda_2"),
        (lambda: start().tag("c").loop_body(nn.ReLU()).for_n(2).using("c"), "loop_2"),
        (lambda: start().tag("c").gate(nn.Linear(2, 2), [double, triple]).using("c"), "gate_2"),
        (lambda: start().tag("c").switch(nn.Linear(2, 1), [double, triple]).using("c"), "switch_2"),
        (lambda: start().tag("c").map(AddRef("c")).each().using("c"), "map_2"),
        (lambda: start().tag("c").through(start().build()).using("c"), "graph_2"),
        (lambda: start().through(StateAdd()).using(3), "names of tags, not 3"),
        (lambda: start().through(StateAdd()).using("h", init={"h": 3.0}).tag("h"), r"not 3\.0"),
        (
            lambda: start().tag("c").split([AddRef("c"), nn.ReLU()]).using("c").merge("add"),
            "relu_3",
        ),
        (lambda: start().tag("c").fork(nn.ReLU()).using("c").tag("s"), "relu_2"),
        (lambda: start().tag("c").also_with(AddRef("c"), nn.ReLU()).using("c"), "relu"),
        (lambda: start().tag("c").split([AddRef("c"), double]).merge("add").using("c"), "merge"),
    ],
)
def test_a_target_that_accepts_no_references_is_refused_while_building(describe, message):
    builder = describe()
    with pytest.raises(BuildError, match=message) as caught:
        builder.build()
    assert "using" in str(caught.value)


@each_row("names", [["a"], ["b"], ["a", "b", "c"], ["a", "c"]])
def test_the_references_of_a_nested_graph_must_be_its_inputs(names):
    inner = start().input("a", "b").through(AddRef("a", "b")).using("a", "b").build()
    builder = start().tag("a").through(double).tag("b").through(double).tag("c")
    builder.through(inner).using(*names)
    with pytest.raises(BuildError, match=r"graph_4") as caught:
        builder.build()
    for port in ("a", "b"):
        assert repr(port) in str(caught.value) or f" {port}" in str(caught.value)


def test_a_nested_graph_with_inputs_needs_its_references():
    inner = start().input("a").through(AddRef("a")).using("a").build()
    with pytest.raises(BuildError, match="graph_2"):
        start().through(inner).build()


@pytest.mark.case("runtime", 19)
def test_references_that_were_never_tagged_are_listed_sorted():
    builder = start().through(StateAdd()).using("zeta", "alpha").through(StateAdd()).using("mu")
    with pytest.raises(BuildError) as caught:
        builder.build()
    text = str(caught.value)
    assert text.index("alpha") < text.index("mu") < text.index("zeta")


def test_the_place_of_the_call_is_reported():
    builder = start().tag("c").through(nn.ReLU())
    line = inspect.currentframe().f_lineno + 1
    builder.using("c")
    with pytest.raises(BuildError, match=rf"test_references\.py:{line}: using: "):
        builder.build()


def test_a_module_that_forgets_to_implement_forward_named_says_so():
    class Forgetful(NamedInputModule):
        pass

    graph = start().tag("c").through(Forgetful()).using("c").build()
    with pytest.raises(NotImplementedError, match="Forgetful does not implement forward_named"):
        graph(torch.ones(1))
