"""Describing graphs: side branches, names of composites, nested graphs, and what is left over."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch
from torch import nn

import flodl
from flodl import Verbosity, set_verbosity, verbosity
from flodl.checkpoint import checkpoint_keys, checkpoint_metadata
from flodl.errors import BuildError
from flodl.graph import FlowBuilder, modules
from tests.rows import each_row

from .layers import AddRef, Bias, Recorder, double, eye, start, triple

GRAPH_NAMES = """
    FlowBuilder LoopBuilder MapBuilder Graph MergeOp LossContext PathKind Reduce Trend TrendGroup
    Profile NodeTiming LevelTiming NamedInputModule LoopBody TraceEmit forward_via_step
    SoftmaxRouter SigmoidRouter FixedSelector ArgmaxSelector ThresholdHalt LearnedHalt StateAdd
    Reshape Lambda modules ModelSnapshot format_duration
    SelfAttention GaussianBlur gaussian_blur_2d freeze_params unfreeze_params
"""


def test_every_public_name_of_graphs_and_layers_is_importable_from_flodl():
    for name in GRAPH_NAMES.split():
        assert getattr(flodl, name).__name__ == name
        assert name in flodl.__all__


def test_every_step_changes_the_builder_and_returns_it():
    builder = FlowBuilder()
    assert builder.through(double).also(double).tag("t").fork(double).tag("s") is builder
    assert builder.split([double, triple]).tag_group("g").merge("add").label("n") is builder
    assert builder.loop_body(double).for_n(1).map(double).batched().each() is builder
    assert (
        builder.input("c").through(AddRef("c")).using("c").internal("t").verbose(False) is builder
    )


# --- Forks --------------------------------------------------------------------------------------


@pytest.mark.case("runtime", 12)
def test_a_fork_leaves_the_stream_as_it_is():
    side = nn.Linear(2, 3)
    graph = start().fork(side).tag("s").through(nn.ReLU()).build()
    x = torch.tensor([[1.0, -2.0]])
    assert graph(x).tolist() == [[1, 0]]
    assert graph.tagged("s").shape == (1, 3)
    assert torch.equal(graph.tagged("s"), side(x))
    assert "s.weight" in graph.state_dict()


@pytest.mark.case("runtime", 13)
def test_a_tag_after_the_next_step_names_that_step_and_the_fork_is_reported():
    line = inspect.currentframe().f_lineno + 1
    builder = start().fork(Recorder(triple)).through(double).tag("t")
    with pytest.warns(UserWarning, match=rf"test_cases_builder\.py:{line}: fork: .*recorder_2"):
        graph = builder.build()
    graph(torch.tensor([1.0]))
    assert graph.tagged("t").tolist() == [2]


def test_using_and_several_tags_apply_to_a_fork_in_any_order():
    builder = start().tag("c").fork(AddRef("c")).tag("a").using("c").tag("b").through(triple)
    graph = builder.build()
    assert graph(torch.tensor([1.0])).tolist() == [3]
    assert [graph.tagged(name).item() for name in ("a", "b")] == [2, 2]


@each_row(
    "between",
    [
        lambda builder: builder.label("net"),
        lambda builder: builder.input("late"),
        lambda builder: builder.fork(triple).tag("other").verbose(False),
    ],
)
def test_any_other_call_ends_the_fork(between):
    builder = between(start().fork(double)).tag("t")
    with pytest.warns(UserWarning, match="lambda_2"):
        graph = builder.build()
    graph(*[torch.tensor([5.0])] * len(graph.topology.inputs))
    assert graph.tagged("t").tolist() == [5]


def test_references_go_to_the_stream_again_after_a_fork():
    builder = start().tag("c").through(AddRef("c")).fork(double).tag("s").label("net").using("c")
    graph = builder.build()
    assert graph(torch.tensor([1.0])).tolist() == [2]


def test_forks_of_one_stream_are_named_by_name_or_tag_and_draw_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = start().fork(Bias(), name="p").tag("a").fork(Bias()).tag("b").build()
    assert list(graph._modules) == ["identity_1", "p", "b"]


def test_a_fork_whose_output_nobody_uses_runs_all_the_same():
    side = Recorder()
    graph = start().fork(side).tag("s").through(double).build()
    graph(torch.ones(1))
    assert len(side.seen) == 1


# --- Order, ids and names -----------------------------------------------------------------------


def test_nodes_run_level_by_level_and_in_building_order_within():
    order = []

    def spy(letter):
        return lambda x: order.append(letter) or x

    builder = start().tag("f").through(spy("a")).through(spy("b")).map(spy("m")).over("f")
    builder.split([spy("x"), spy("y")]).merge("add").build()(torch.ones(1, 1))
    # The map reads the tag alone: it stands beside "a", and the stream goes on from it.
    assert order == ["a", "m", "b", "x", "y"]


def test_structural_nodes_count_as_well():
    builder = start().split([double, triple]).merge("add").loop_body(double).for_n(1)
    builder.gate(nn.Linear(2, 2), [double, triple]).switch(nn.Linear(2, 1), [double, triple])
    graph = builder.map(double).each().input("c").also(AddRef("c")).using("c").build()
    assert [node.id for node in graph.topology.nodes] == [
        "identity_1", "lambda_2", "lambda_3", "merge_4", "loop_5", "gate_6", "switch_7", "map_8",
        "input_9", "addref_10", "add_11",
    ]  # fmt: skip


def test_ports_are_named_by_what_arrives():
    builder = start().tag("c").split([double, triple]).merge("add").also(AddRef("c")).using("c")
    ports = {node.id: [wire.port for wire in node.wires] for node in builder.build().topology.nodes}
    assert ports["lambda_2"] == ["input"]
    assert ports["merge_4"] == ["input_0", "input_1"]
    assert ports["addref_5"] == ["input", "ref_c"]
    assert ports["add_6"] == ["input_0", "input_1"]


def test_every_step_with_a_module_can_be_named():
    builder = FlowBuilder().through(Bias(), name="a").also(Bias(), name="b")
    builder.fork(Bias(), name="c").tag("side").loop_body(Bias(), name="d").for_n(2)
    builder.gate(nn.Linear(1, 2), modules(Bias(), Bias()), name="e")
    builder.switch(nn.Linear(1, 1), modules(Bias(), Bias()), name="f")
    graph = builder.map(Bias(), name="g").each().build()
    assert [name for name, _ in graph.qualified_parameters()] == [
        "a/b", "b/b", "c/b", "d/body.b", "e/router.weight", "e/router.bias", "e/experts.0.b",
        "e/experts.1.b", "f/router.weight", "f/router.bias", "f/branches.0.b", "f/branches.1.b",
        "g/b",
    ]  # fmt: skip
    assert set(graph.state_dict()) == {
        name.replace("/", ".", 1) for name, _ in graph.qualified_parameters()
    }


@each_row(
    "describe",
    [
        lambda: start().through(double, name="n").loop_body(double, name="n").for_n(1),
        lambda: start().fork(double, name="n").tag("s").map(double, name="n").each(),
        lambda: start().gate(double, [double, triple], name="n").switch(
            double, [double, triple], name="n"
        ),
    ],
)  # fmt: skip
def test_a_name_is_unique_in_its_graph(describe):
    builder = describe()
    with pytest.raises(BuildError, match="name 'n' is taken"):
        builder.build()


@each_row(
    ("describe", "message"),
    [
        (lambda: start().internal("nope"), "internal: .*'nope'"),
        (lambda: start().input("a.b"), r"dots and slashes.*a\.b"),
        (lambda: start().input("forward"), "'forward' is an attribute"),
        (lambda: start().split([double, triple]).tag_group("a.b"), r"dots and slashes.*a\.b"),
        (lambda: start().split([double, triple]).fork(double), "2 streams"),
        (lambda: start().split([double, triple]).loop_body(double).for_n(1), "2 streams"),
        (lambda: start().split([double, triple]).gate(double, [double, triple]), "2 streams"),
        (lambda: start().split([double, triple]).switch(double, [double, triple]), "2 streams"),
        (lambda: start().gate(double, []), "at least 2 experts, got 0"),
        (lambda: start().switch(double, [double]), "at least 2 branches, got 1"),
        (lambda: start().loop_body(3).for_n(1), "expected a module or a function"),
        (lambda: start().map(3).each(), "expected a module or a function"),
        (lambda: start().loop_body(double).while_cond(3, 2), "expected a module or a function"),
    ],
)
def test_misuse_of_side_branches_and_composites_is_refused(describe, message):
    builder = describe()
    with pytest.raises(BuildError, match=message) as caught:
        builder.build()
    assert "test_cases_builder.py:" in str(caught.value)


def test_a_label_with_a_dot_is_reported_where_it_was_given():
    builder = start()
    line = inspect.currentframe().f_lineno + 1
    builder.label("a.b")
    builder.through(double)
    with pytest.raises(BuildError, match=rf":{line}: label: "):
        builder.build()


def test_a_loop_left_open_is_reported_where_it_began():
    builder = start()
    line = inspect.currentframe().f_lineno + 1
    builder.loop_body(double)
    builder.through(double)
    with pytest.raises(BuildError, match=rf":{line}: loop_body: .*for_n"):
        builder.build()


# --- Nested graphs and shared modules -----------------------------------------------------------


def labelled(label):
    return FlowBuilder.from_(nn.Linear(2, 2)).label(label).build()


def test_labels_of_children_are_unique_and_no_tags_of_other_nodes():
    twice = FlowBuilder.from_(labelled("enc")).through(labelled("enc"))
    with pytest.raises(BuildError, match=r"graph_1.*graph_2.*'enc'"):
        twice.build()
    clash = FlowBuilder.from_(labelled("enc")).through(double).tag("enc")
    with pytest.raises(BuildError, match=r"graph_1.*'enc'.*tag"):
        clash.build()
    child = labelled("enc")
    assert list(FlowBuilder.from_(child).through(child).build().tree_children()) == ["enc"]
    same = FlowBuilder.from_(labelled("enc")).tag("enc").build()
    assert list(same.tree_children()) == ["enc"]


def test_a_nested_graph_is_a_node_of_kind_graph():
    graph = start().through(labelled("enc")).through(FlowBuilder().build()).build()
    assert [node.id for node in graph.topology.nodes] == ["identity_1", "graph_2", "graph_3"]
    assert "graph_2.linear_1.weight" in graph.state_dict()
    assert list(graph.tree_children()) == ["enc"]


@pytest.mark.case("runtime", 83)
def test_a_layer_in_two_nodes_is_one_layer(tmp_path):
    layer = nn.Linear(2, 2)
    tied = FlowBuilder.from_(layer).through(nn.ReLU()).through(layer).build()
    assert len(list(tied.parameters())) == 2
    assert [name for name, _ in tied.qualified_parameters()] == ["linear_1/weight", "linear_1/bias"]
    tied(torch.ones(1, 2))

    file = tmp_path / "tied.fdl"
    tied.save_checkpoint(file)
    assert sorted(checkpoint_keys(file)) == ["linear_1/bias", "linear_1/weight"]
    assert "linear_3.weight" in checkpoint_metadata(file)["aliases"]

    untied = FlowBuilder.from_(nn.Linear(2, 2)).through(nn.ReLU()).through(nn.Linear(2, 2)).build()
    report = untied.load_checkpoint(file)
    assert sorted(report.loaded) == [
        "linear_1/bias", "linear_1/weight", "linear_3/bias", "linear_3/weight",
    ]  # fmt: skip
    for name in ("linear_1", "linear_3"):
        assert torch.equal(untied.get_submodule(name).weight, layer.weight)
        assert torch.equal(untied.get_submodule(name).bias, layer.bias)


def test_a_weight_in_two_layers_is_listed_once_under_the_first():
    encode, decode = nn.Linear(3, 3), nn.Linear(3, 3)
    decode.weight = encode.weight
    graph = FlowBuilder.from_(encode).tag("encode").through(decode).tag("decode").build()
    assert [name for name, _ in graph.qualified_parameters()] == [
        "encode/weight", "encode/bias", "decode/bias",
    ]  # fmt: skip
    assert len(graph.trainable_parameters()) == 3


def test_the_label_enters_no_name():
    assert list(labelled("enc").state_dict()) == list(
        FlowBuilder.from_(nn.Linear(2, 2)).build().state_dict()
    )


# --- The log ------------------------------------------------------------------------------------


@pytest.fixture
def talkative():
    before = verbosity()
    set_verbosity(Verbosity.VERBOSE)
    yield
    set_verbosity(before)


@pytest.mark.usefixtures("talkative")
def test_a_verbose_builder_logs_the_tree(capsys):
    FlowBuilder.from_(labelled("enc")).label("net").build()
    FlowBuilder.from_(labelled("enc")).label("net").verbose().verbose(False).build()
    assert capsys.readouterr().out == ""
    graph = FlowBuilder.from_(labelled("enc")).label("net").verbose(True).build()
    out = capsys.readouterr().out
    assert graph.tree_summary() in out
    assert "enc" in out


def test_at_normal_verbosity_it_logs_nothing(capsys):
    FlowBuilder.from_(eye(2)).verbose(True).build()
    assert capsys.readouterr().out == ""
