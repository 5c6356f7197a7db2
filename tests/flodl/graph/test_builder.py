"""Describing graphs: what each step makes, and how misuse is reported."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from flodl.errors import BuildError, PathError
from flodl.graph import FlowBuilder, Graph, Lambda, MergeOp, modules
from flodl.graph.topology import (
    Call,
    Combine,
    Gate,
    Loop,
    Map,
    Node,
    Port,
    StateRead,
    Wire,
    levels,
)
from tests.rows import each_row

from .layers import AddRef, double, eye, start, triple


@pytest.mark.case("runtime", 1)
def test_also_adds_the_module_to_the_stream():
    graph = FlowBuilder.from_(eye(3)).also(eye(3, bias=1.0)).build()
    assert graph(torch.tensor([1.0, 2, 3])).tolist() == [3, 5, 7]


@pytest.mark.case("runtime", 2)
def test_merge_adds_or_averages_the_split_streams():
    x = torch.tensor([1.0, 2])
    added = start().split(modules(double, triple)).merge(MergeOp.ADD).build()
    averaged = start().split(modules(double, triple)).merge(MergeOp.MEAN).build()
    assert added(x).tolist() == [5, 10]
    assert averaged(x).tolist() == [2.5, 5]


def test_merge_accepts_the_names_of_the_operations():
    x = torch.tensor([1.0, 2])
    assert start().split([double, triple]).merge("add").build()(x).tolist() == [5, 10]
    assert start().split([double, triple]).merge("mean").build()(x).tolist() == [2.5, 5]


def test_also_with_adds_two_modules():
    graph = start().also_with(double, triple).build()
    assert graph(torch.tensor([1.0, 2])).tolist() == [5, 10]
    assert [node.id for node in graph.topology.nodes] == [
        "identity_1",
        "lambda_2",
        "lambda_3",
        "add_4",
    ]


def test_a_bare_builder_starts_with_an_identity():
    graph = FlowBuilder().through(double).build()
    assert list(graph._modules) == ["identity_1", "lambda_2"]
    assert graph(torch.tensor([4.0])).tolist() == [8]


@pytest.mark.case("runtime", 20)
def test_node_ids_count_all_kinds_and_name_the_modules():
    def network(**names):
        builder = FlowBuilder.from_(nn.Linear(4, 8))
        if "tag" in names:
            builder.tag(names["tag"])
        return builder.through(nn.GELU()).also(nn.Linear(8, 8), name=names.get("name"))

    graph = network().through(nn.Linear(8, 2)).build()
    ids = [node.id for node in graph.topology.nodes]
    assert ids == ["linear_1", "gelu_2", "linear_3", "add_4", "linear_5"]
    assert sum(p.numel() for p in graph.parameters()) == 130
    assert "linear_3.weight" in graph.state_dict()
    assert "linear_3/weight" in dict(graph.qualified_parameters())

    assert "enc.weight" in network(tag="enc").build().state_dict()

    named = network(name="res").tag("sum").build()
    assert "res/weight" in dict(named.qualified_parameters())
    assert "sum" not in named._modules
    assert named.tag_names() == ["sum"]
    assert named.parameters_at("sum") == []
    assert network(tag="enc").build().parameters_at("enc")[0].shape == (8, 4)
    with pytest.raises(PathError, match=r"'som'.*did you mean sum\?"):
        named.parameters_at("som")


def test_a_module_may_choose_its_kind():
    class Attention(nn.Linear):
        flodl_name = "attn"

    graph = FlowBuilder.from_(Attention(2, 2)).build()
    assert list(graph._modules) == ["attn_1"]


def test_the_first_tag_of_a_node_is_its_prefix_and_a_name_goes_before():
    graph = start().tag("a").tag("b").through(double, name="n").tag("c").build()
    assert list(graph._modules) == ["a", "n"]
    assert graph.tag_names() == ["a", "b", "c"]


def test_a_tag_group_names_the_streams():
    graph = start().split([double, triple]).tag_group("head").merge("add").build()
    graph(torch.tensor([1.0]))
    assert graph.tag_group("head") == ["head_0", "head_1"]
    assert graph.tag_group("nope") is None
    assert [graph.tagged(name).item() for name in ("head_0", "head_1")] == [2, 3]


def test_a_tag_may_be_a_method_of_graph():
    graph = FlowBuilder.from_(nn.Linear(2, 2)).tag("step").build()
    assert "step.weight" in graph.state_dict()
    graph.load_state_dict(graph.state_dict())


def test_modules_collects_modules_and_wraps_functions():
    relu = nn.ReLU()
    first, second = modules(relu, double)
    assert first is relu
    assert isinstance(second, Lambda)
    assert "double" in repr(second)


def test_lambda_refuses_what_cannot_be_called():
    with pytest.raises(ValueError, match="callable, not int"):
        Lambda(3)


@pytest.mark.case("runtime", 19)
@each_row(
    ("describe", "message"),
    [
        (lambda: start().tag("a").through(double).tag("a"), "tag 'a' is taken"),
        (lambda: start().split([double, triple]), "2 streams are still open"),
        (lambda: start().tag_group("g"), "only one stream"),
        (lambda: start().split([double]), "at least 2 branches, got 1"),
        (
            lambda: start().tag("c").through(nn.ReLU()).using("c"),
            "using: relu_2 takes no references",
        ),
        (lambda: start().through(AddRef("nope")).using("nope"), "'nope'"),
        (lambda: start().loop_body(double).for_n(0), "n is at least 1, not 0"),
        (
            lambda: start().tag("c").split([AddRef("c"), AddRef("c")]).merge("add").using("c"),
            "using: a merge takes no references",
        ),
        (lambda: start().label("a.b"), "without dots, not 'a.b'"),
        (lambda: start().label(""), "non-empty"),
        (lambda: start().tag("a/b"), "dots and slashes.*'a/b'"),
        (lambda: start().tag("a.b"), r"dots and slashes.*'a\.b'"),
        (lambda: start().tag(""), "non-empty"),
        (lambda: start().tag("forward"), "'forward' is an attribute of torch.nn.Module"),
        (lambda: start().tag("training"), "'training' is an attribute"),
        (lambda: start().through(double, name="parameters"), "'parameters' is an attribute"),
        (lambda: start().through(double, name="a.b"), r"dots and slashes.*'a\.b'"),
        (lambda: start().through(double, name="n").also(triple, name="n"), "name 'n' is taken"),
        (lambda: start().tag("n").through(double, name="n"), "would both be registered as 'n'"),
        (lambda: start().tag("lambda_2").through(double), "both be registered as 'lambda_2'"),
        (lambda: start().merge("add"), "call split first"),
        (lambda: start().split([double, triple]).merge("sum"), "unknown operation 'sum'"),
        (lambda: start().split([double, triple]).through(double), "2 streams are open"),
        (lambda: start().split([double, triple]).also(double), "2 streams are open"),
        (lambda: start().split([double, triple]).also_with(double, double), "streams are open"),
        (lambda: start().split([double, triple]).split([double, triple]), "streams are open"),
        (lambda: start().split([double, triple]).tag("t"), "2 streams are open"),
        (
            lambda: start().tag("g").split([double, triple]).tag_group("g").merge("add"),
            "tag 'g' is taken",
        ),
        (
            lambda: start().tag("g_1").split([double, triple]).tag_group("g").merge("add"),
            "tag 'g_1' is taken",
        ),
        (
            lambda: start().split([double, triple]).tag_group("g").merge("add").tag("g"),
            "tag 'g' is taken",
        ),
        (lambda: start().through(3), "expected a module or a function of tensors, not 3"),
        (lambda: FlowBuilder.from_(nn.ReLU), "expected a module"),
        (lambda: start().through(type("Dotted", (nn.Identity,), {"flodl_name": "a.b"})()), "a.b"),
    ],
)
def test_misuse_is_refused_when_building(describe, message):
    builder = describe()
    with pytest.raises(BuildError, match=message):
        builder.build()


def test_the_first_misuse_is_reported_with_the_place_of_the_call():
    line = inspect.currentframe().f_lineno + 1
    builder = start().tag("a").through(double).tag("a")
    builder.split([double]).tag("x.y")
    for _ in range(2):
        with pytest.raises(BuildError, match="tag 'a' is taken") as caught:
            builder.build()
        assert f"{Path(__file__).name}:{line}: tag:" in str(caught.value)


def test_open_streams_are_reported_with_the_place_of_their_split():
    line = inspect.currentframe().f_lineno + 1
    builder = start().split([double, triple])
    builder.label("net")
    with pytest.raises(BuildError, match=f":{line}: split: its 2 streams are still open"):
        builder.build()


def test_a_built_builder_is_spent():
    builder = start()
    assert isinstance(builder.build(), Graph)
    with pytest.raises(BuildError, match=r"test_builder\.py:\d+: build: .* has built its graph"):
        builder.build()
    with pytest.raises(BuildError, match=r"through: .* has built its graph"):
        builder.through(double)


def test_levels_hold_what_can_run_side_by_side_in_building_order():
    nodes = [
        Node(1, "a", Call(), (Wire(0),)),
        Node(2, "b", Call(), (Wire(1),)),
        Node(3, "c", Call(), (Wire(0),)),
        Node(4, "d", Call(), (Wire(2), Wire(3))),
    ]
    assert [[node.id for node in level] for level in levels(nodes)] == [
        ["a_1", "c_3"],
        ["b_2"],
        ["d_4"],
    ]


def test_the_order_within_a_level_does_not_depend_on_what_leads_there():
    nodes = [
        Node(1, "a", Call(), (Wire(0),)),
        Node(2, "b", Call(), (Wire(0),)),
        Node(3, "c", Call(), (Wire(2),)),
        Node(4, "d", Call(), (Wire(1),)),
    ]
    assert [[node.number for node in level] for level in levels(nodes)] == [[1, 2], [3, 4]]


@each_row(
    "operation",
    [Call(), Combine(MergeOp.ADD), Port("p"), StateRead("t"), Loop("for", 2), Gate(2), Map("each")],
    ids=lambda operation: type(operation).__name__,
)
def test_a_topology_is_a_value_that_cannot_be_changed(operation):
    field = fields(operation)[0].name
    with pytest.raises(FrozenInstanceError):
        setattr(operation, field, None)
    assert hash(operation) == hash(replace(operation))


def test_levels_refuse_a_cycle():
    nodes = [Node(1, "a", Call(), (Wire(2),)), Node(2, "b", Call(), (Wire(1),))]
    with pytest.raises(BuildError, match="cycle through a_1, b_2"):
        levels(nodes)
