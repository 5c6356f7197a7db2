"""Graphs inside graphs: paths, freezing, observing and loading by path."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from flodl.errors import ArchitectureMismatch, PathError
from flodl.graph import FlowBuilder
from flodl.graph.freezing import freeze_params, unfreeze_params
from flodl.graph.paths import PathKind
from tests.rows import each_row


def encoder(width=4):
    """Scan, normalise, read: a child with a visible tag, a private one and a hidden one."""
    return (
        FlowBuilder.from_(nn.Linear(3, width))
        .tag("scan")
        .through(nn.BatchNorm1d(width))
        .tag("_p")
        .through(nn.ReLU())
        .tag("hidden")
        .through(nn.Linear(width, width))
        .tag("read")
        .internal("read")
        .label("encoder")
        .build()
    )


def model(child=None):
    return (
        FlowBuilder.from_(encoder() if child is None else child)
        .through(nn.Linear(4, 2))
        .tag("head")
        .also(nn.Linear(2, 2))
        .tag("sum")
        .label("model")
        .build()
    )


def visible_encoder():
    """The same without anything hidden: ``scan`` and ``read``."""
    return (
        FlowBuilder.from_(nn.Linear(3, 4))
        .tag("scan")
        .through(nn.Linear(4, 4))
        .tag("read")
        .label("encoder")
        .build()
    )


# --- Structure and paths ---------------------------------------------------------------------


@pytest.mark.case("runtime", 23)
def test_paths_lead_to_children_and_their_visible_tags_and_nowhere_else():
    graph = model()
    assert graph.validate_path("encoder") is PathKind.SUBGRAPH
    assert graph.validate_path("encoder.hidden") is PathKind.TAG
    for path in ("encoder.nope", "", "encoder._p"):
        with pytest.raises(PathError):
            graph.validate_path(path)


def test_labelled_graphs_become_children_and_unlabelled_ones_do_not():
    plain = FlowBuilder.from_(nn.ReLU()).build()
    child = encoder()
    assert not child.is_composed
    graph = FlowBuilder.from_(child).through(plain).build()
    assert list(graph.tree_children()) == ["encoder"]
    assert graph.child_graph("encoder") is child
    assert graph.child_graph("graph") is None
    assert graph.subgraph("encoder") is child
    assert child.is_composed
    assert not plain.is_composed
    assert not graph.is_composed
    assert copy.deepcopy(graph).child_graph("encoder").is_composed


def test_paths_go_as_deep_as_the_graphs():
    graph = FlowBuilder.from_(model()).through(nn.Tanh()).build()
    assert graph.validate_path("model.encoder.hidden") is PathKind.TAG
    assert graph.subgraph("model.encoder").label == "encoder"
    with pytest.raises(PathError, match="'encoder'"):
        graph.validate_path("encoder")  # no search below


def test_internal_tags_are_seen_by_their_own_graph_alone():
    graph = model()
    child = graph.subgraph("encoder")
    assert child.validate_path("_p") is PathKind.TAG
    assert child.validate_path("read") is PathKind.TAG
    for hidden in ("_p", "read"):
        with pytest.raises(PathError, match=f"tag '{hidden}' .segment 2. is internal to graph"):
            graph.parameters_at(f"encoder.{hidden}")


@each_row("path", ["", ".", "encoder.", ".encoder", "encoder..hidden", None])
def test_empty_segments_are_refused(path):
    with pytest.raises(PathError, match="empty segment"):
        model().validate_path(path)


def test_a_wrong_path_is_answered_with_segment_path_and_near_matches():
    graph = model()
    with pytest.raises(PathError, match=r"'encoder.hiden'.*segment 2.*did you mean hidden"):
        graph.tagged("encoder.hiden")
    with pytest.raises(PathError, match=r"segment 1.*did you mean encoder"):
        graph.subgraph("encodr.hidden")
    with pytest.raises(PathError, match=r"'head' \(segment 1\) is a tag of this graph"):
        graph.parameters_at("head.weight")
    with pytest.raises(PathError) as refused:
        graph.validate_path("encoder.zzz")
    assert "hidden" in str(refused.value)
    assert "_p" not in str(refused.value)


def test_a_child_comes_before_a_tag_of_the_same_name():
    graph = FlowBuilder.from_(encoder()).tag("encoder").through(nn.ReLU()).build()
    assert graph.validate_path("encoder") is PathKind.SUBGRAPH


def test_a_tag_is_no_subgraph_and_a_subgraph_no_tag():
    graph = model()
    with pytest.raises(PathError, match="leads to a tag"):
        graph.subgraph("head")
    for observe in (graph.tagged, graph.collect):
        with pytest.raises(KeyError, match="no tag 'encoder'"):
            observe("encoder")


# --- Parameters ------------------------------------------------------------------------------


def test_parameters_have_the_names_of_the_targets_own_graph():
    graph = model()
    named = graph.named_parameters_at("encoder")
    assert [name for name, _ in named] == [
        "scan/weight", "scan/bias", "_p/weight", "_p/bias", "read/weight", "read/bias",
    ]  # fmt: skip
    assert [parameter for _, parameter in named] == graph.parameters_at("encoder")
    assert [name for name, _ in graph.named_parameters_at("encoder.scan")] == [
        "scan/weight",
        "scan/bias",
    ]


def test_a_sum_has_no_parameters():
    graph = model()
    assert graph.parameters_at("sum") == []
    assert graph.named_parameters_at("sum") == []
    graph.freeze("sum", stats=True)
    graph.thaw("sum")
    assert not graph.is_frozen("sum")


def test_a_shared_parameter_is_listed_once():
    shared = nn.Linear(4, 4)
    child = FlowBuilder.from_(shared).through(shared).label("twice").build()
    graph = FlowBuilder.from_(child).through(shared).build()
    assert len(graph.parameters_at("twice")) == 2
    assert len(graph.named_parameters_at("twice")) == 2
    rows = [line.split() for line in graph.param_summary().splitlines()]
    assert ["twice", "2", "20", "100.0%", "trainable"] in rows
    assert ["(own)", "0", "0", "0.0%", "no", "parameters"] in rows


def test_groups_for_an_optimizer():
    graph = model()
    optimizer = torch.optim.SGD([graph.optim_group("encoder", 0.5), graph.optim_group("head", 2)])
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 2]
    assert [len(group["params"]) for group in optimizer.param_groups] == [6, 2]


# --- Freezing --------------------------------------------------------------------------------


@pytest.mark.case("runtime", 24)
def test_frozen_weights_stay_whatever_the_optimizer_remembers():
    graph = model(visible_encoder())
    optimizer = torch.optim.SGD(graph.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

    def train_once():
        graph(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()

    train_once()  # momentum and gradients are there now
    graph.freeze("encoder")
    assert graph.is_frozen("encoder")
    frozen = [p.detach().clone() for p in graph.parameters_at("encoder")]
    free = [p.detach().clone() for p in graph.parameters_at("head")]
    for _ in range(3):
        train_once()
    now = graph.parameters_at("encoder")
    assert all(torch.equal(a, b) for a, b in zip(now, frozen, strict=True))
    head = graph.parameters_at("head")
    assert not any(torch.equal(a, b) for a, b in zip(head, free, strict=True))

    graph.thaw("encoder.scan")
    assert graph.is_frozen("encoder.read")
    assert not graph.is_frozen("encoder")
    assert not graph.is_frozen("encoder.scan")


def test_freezing_drops_gradients():
    graph = model()
    graph(torch.randn(5, 3)).sum().backward()
    assert list(graph.parameters_at("encoder"))
    assert list(graph.parameters_at("head"))
    assert all(p.grad is not None for p in graph.parameters_at("encoder"))
    graph.freeze("encoder")
    assert all(p.grad is None for p in graph.parameters_at("encoder"))
    assert all(p.grad is not None for p in graph.parameters_at("head"))


def test_tensors_can_be_frozen_without_a_path():
    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    freeze_params(layer.parameters())
    assert [(p.requires_grad, p.grad) for p in layer.parameters()] == [(False, None)] * 2
    unfreeze_params(layer.parameters())
    assert all(p.requires_grad for p in layer.parameters())


def statistics(graph):
    return graph.subgraph("encoder")._modules["_p"].running_mean.clone()


def test_statistics_stay_as_well_when_asked_to():
    graph = model()
    before = statistics(graph)
    graph.freeze("encoder", stats=True)
    graph(torch.randn(8, 3))
    graph.eval()
    graph.train()
    graph.subgraph("encoder").train()
    graph.set_training_at("encoder", True)
    graph(torch.randn(8, 3))
    assert torch.equal(statistics(graph), before)
    assert graph.training
    assert graph.subgraph("encoder").training

    graph.thaw("encoder")
    graph(torch.randn(8, 3))
    assert not torch.equal(statistics(graph), before)


def test_without_asking_statistics_move():
    graph = model()
    before = statistics(graph)
    graph.freeze("encoder")
    graph(torch.randn(8, 3))
    assert not torch.equal(statistics(graph), before)


@each_row("copied", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_copies_are_pinned_too(copied):
    graph = model()
    graph.freeze("encoder", stats=True)
    other = copied(graph).train()
    before = statistics(other)
    other(torch.randn(8, 3))
    assert torch.equal(statistics(other), before)
    other.thaw("encoder")
    other(torch.randn(8, 3))
    assert not torch.equal(statistics(other), before)


def test_thawing_follows_the_mode_of_the_graph():
    graph = model()
    graph.freeze("encoder", stats=True)
    graph.eval()
    graph.thaw("encoder")
    assert not graph.subgraph("encoder")._modules["_p"].training
    graph.train()
    assert graph.subgraph("encoder")._modules["_p"].training


def test_mode_can_be_set_by_path():
    graph = model()
    graph.set_training_at("encoder", False)
    assert not any(module.training for module in graph.subgraph("encoder").modules())
    assert graph.training
    graph.set_training_at("head", False)
    assert not graph._modules["head"].training
    graph.set_training_at("sum", False)  # nothing there to set
    graph.train()
    assert all(module.training for module in graph.modules())


# --- Observation -----------------------------------------------------------------------------


def test_values_of_tags_below():
    graph = model()
    assert graph.tagged("encoder.hidden") is None
    graph(torch.randn(5, 3))
    assert graph.tagged("encoder.hidden").shape == (5, 4)
    assert graph.tagged("encoder.hidden") is graph.subgraph("encoder").tagged("hidden")
    assert graph.tagged("head").shape == (5, 2)


def test_metrics_are_recorded_where_they_belong():
    graph = model()
    graph.record_at("encoder.loss", 0.5)
    graph.record_at("encoder.loss", [0.3])
    graph.record_at("encoder.loss", torch.tensor([0.25, 0.35]))
    graph.record_at("total", 1)
    assert graph.subgraph("encoder").collected("loss") == pytest.approx([0.5, 0.3, 0.25, 0.35])
    assert graph.collected("total") == [1.0]
    graph.flush()
    assert graph.trend_at("encoder.loss").values == pytest.approx([0.35])
    assert graph.trend_at("total").values == [1.0]
    with pytest.raises(PathError, match="'encodr'"):
        graph.record_at("encodr.loss", 1.0)
    with pytest.raises(PathError, match="'head'"):
        graph.trend_at("head.loss")


def test_tags_are_collected_where_they_belong():
    child = FlowBuilder.from_(nn.Linear(1, 1)).tag("y").label("child").build()
    graph = FlowBuilder.from_(child).through(nn.Linear(1, 1)).tag("z").build()
    y = graph(torch.ones(1, 1))
    graph.collect("child.y", "z")
    graph.collect(["child.y"])
    assert child.collected("y") == [child.tagged("y").item()] * 2
    assert graph.collected("z") == [y.item()]
    with pytest.raises(PathError):
        graph.collect("z", "child.nope")
    assert graph.collected("z") == [y.item()]


# --- Checkpoints -----------------------------------------------------------------------------


@pytest.mark.case("runtime", 26)
def test_a_childs_checkpoint_fills_that_child_and_nothing_else(tmp_path):
    trained = encoder()
    trained(torch.randn(8, 3))  # statistics as well
    trained.save_checkpoint(tmp_path / "encoder.fdl")

    graph = model()
    before = {name: value.clone() for name, value in graph.state_dict().items()}
    report = graph.load_subgraph_checkpoint("encoder", tmp_path / "encoder.fdl")
    assert report.loaded == [
        *(name for name, _ in trained.qualified_parameters()),
        *(name for name, _ in trained.qualified_buffers()),
    ]
    assert report.missing == report.skipped == []
    for name, value in graph.subgraph("encoder").state_dict().items():
        assert torch.equal(value, trained.state_dict()[name])
    for name, value in graph.state_dict().items():
        if not name.startswith("graph_1."):
            assert torch.equal(value, before[name])


def test_a_childs_checkpoint_must_be_of_the_childs_architecture(tmp_path):
    encoder(width=8).save_checkpoint(tmp_path / "wide.fdl")
    graph = model()
    with pytest.raises(ArchitectureMismatch):
        graph.load_subgraph_checkpoint("encoder", tmp_path / "wide.fdl")
    with pytest.raises(PathError):
        graph.load_subgraph_checkpoint("head", tmp_path / "wide.fdl")


def test_a_child_is_taken_out_of_a_checkpoint_of_the_whole_model(tmp_path):
    trained, graph = model(), model()
    trained(torch.randn(8, 3))  # statistics as well
    trained.save_checkpoint(tmp_path / "whole.fdl")
    before = {name: value.clone() for name, value in graph.state_dict().items()}

    report = graph.load_subgraph_checkpoint("encoder", tmp_path / "whole.fdl")
    child = graph.subgraph("encoder")
    assert report.loaded == [
        *(name for name, _ in child.qualified_parameters()),
        *(name for name, _ in child.qualified_buffers()),
    ]
    assert report.missing == report.skipped == []
    for name, value in graph.state_dict().items():
        source = trained.state_dict() if name.startswith("graph_1.") else before
        assert torch.equal(value, source[name])


def test_a_grandchild_is_taken_out_of_the_file_of_any_graph_around_it(tmp_path):
    def nested():
        inner = FlowBuilder.from_(nn.Linear(3, 3)).label("inner").build()
        middle = FlowBuilder.from_(nn.Tanh()).through(inner).label("middle").build()
        return FlowBuilder.from_(nn.Linear(3, 3)).through(middle).build()

    trained = nested()
    for name, part in {"root": trained, "middle": trained.subgraph("middle")}.items():
        part.save_checkpoint(tmp_path / f"{name}.fdl")
        graph = nested()
        report = graph.load_subgraph_checkpoint("middle.inner", tmp_path / f"{name}.fdl")
        assert report.loaded == ["linear_1/weight", "linear_1/bias"]
        ours, theirs = graph.parameters_at("middle.inner"), trained.parameters_at("middle.inner")
        assert all(map(torch.equal, ours, theirs))


def test_a_child_of_another_whole_model_needs_the_option_that_the_error_names(tmp_path):
    other = FlowBuilder.from_(encoder()).through(nn.Linear(4, 9)).tag("head").build()
    other.save_checkpoint(tmp_path / "other.fdl")
    graph = FlowBuilder.from_(encoder()).through(nn.Linear(4, 2)).tag("head").build()
    before = [p.clone() for p in graph.parameters_at("encoder")]
    with pytest.raises(ArchitectureMismatch, match="on_shape_mismatch='skip'"):
        graph.load_subgraph_checkpoint("encoder", tmp_path / "other.fdl")
    assert all(map(torch.equal, graph.parameters_at("encoder"), before))

    report = graph.load_subgraph_checkpoint(
        "encoder", tmp_path / "other.fdl", on_shape_mismatch="skip"
    )
    assert report.missing == report.skipped == []
    ours, theirs = graph.parameters_at("encoder"), other.parameters_at("encoder")
    assert all(map(torch.equal, ours, theirs))


# --- Reports ---------------------------------------------------------------------------------


def test_the_tree_as_text():
    decoder = FlowBuilder.from_(nn.Linear(2, 1)).tag("out").label("decoder").build()
    graph = FlowBuilder.from_(model()).through(decoder).build()
    assert graph.tree_summary().splitlines() == [
        "(unlabelled): 2 nodes, 63 parameters",
        "├─ model: 4 nodes, 60 parameters #head #sum",
        "│  └─ encoder: 4 nodes, 44 parameters #scan #_p #hidden #read",
        "└─ decoder: 1 node, 3 parameters #out",
    ]


def test_the_parameters_as_a_table():
    graph = model()
    graph.freeze("encoder")
    graph.freeze("head")
    rows = [line.split() for line in graph.param_summary().splitlines()]
    assert rows == [
        ["tensors", "elements", "share"],
        ["encoder", "6", "44", "73.3%", "frozen"],
        ["(own)", "4", "16", "26.7%", "2/4", "frozen"],
        ["total", "10", "60", "8/10", "frozen"],
    ]
