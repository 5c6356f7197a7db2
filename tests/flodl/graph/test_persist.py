"""What a graph keeps of itself in a file, and which files it takes back."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from flodl.checkpoint import (
    checkpoint_keys,
    checkpoint_metadata,
    migrate_checkpoint_file,
    save_checkpoint_file,
)
from flodl.errors import ArchitectureMismatch, CheckpointError, ShapeMismatch
from flodl.graph import FlowBuilder


def network(hidden=8, label="net"):
    builder = FlowBuilder.from_(nn.Linear(4, hidden)).tag("enc").through(nn.BatchNorm1d(hidden))
    return builder.through(nn.Linear(hidden, 2)).tag("dec").label(label).build()


def values(graph):
    return {name: value.clone() for name, value in graph.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def loop(times):
    return FlowBuilder.from_(nn.Linear(3, 3)).loop_body(nn.Linear(3, 3)).for_n(times).build()


@pytest.mark.case("runtime", 34)
def test_another_architecture_is_refused_and_another_label_is_not(tmp_path):
    path = tmp_path / "x.fdl"
    graph, wide, relabelled = network(), network(hidden=16), network(label="other")
    graph.save_checkpoint(path)
    before = values(wide)
    with pytest.raises(ArchitectureMismatch) as caught:
        wide.load_checkpoint(path)
    assert graph.structural_hash() in str(caught.value)
    assert wide.structural_hash() in str(caught.value)
    assert same(values(wide), before)

    assert relabelled.load_checkpoint(path).missing == []
    assert same(values(relabelled), values(graph))
    assert loop(3).structural_hash() != loop(5).structural_hash()


def test_a_graph_saves_parameters_buffers_label_and_hash(tmp_path):
    path = tmp_path / "deep" / "x.fdl.gz"
    graph = network()
    graph(torch.randn(5, 4))
    graph.save_checkpoint(path)
    names = [name for name, _ in graph.qualified_parameters() + graph.qualified_buffers()]
    assert names[0] == "enc/weight"
    assert sorted(checkpoint_keys(path)) == sorted(names)
    assert checkpoint_metadata(path)["label"] == "net"
    assert checkpoint_metadata(path)["structural_hash"] == graph.structural_hash()
    other = network()
    assert other.load_checkpoint(path).loaded == names
    assert same(values(other), values(graph))


def test_the_source_configuration_is_saved_with_the_checkpoint(tmp_path):
    graph, text = network(), json.dumps({"hidden": 8})
    assert graph.source_config is None
    graph.set_source_config(text)
    assert graph.source_config == text
    graph.save_checkpoint(tmp_path / "model.fdl.gz")
    assert checkpoint_metadata(tmp_path / "model.fdl.gz")["source_config"] == text
    assert (tmp_path / "model.config.json").read_text() == text

    graph = network()
    graph.save_checkpoint(tmp_path / "plain.fdl")
    assert "source_config" not in checkpoint_metadata(tmp_path / "plain.fdl")
    assert not (tmp_path / "plain.config.json").exists()
    with pytest.raises(ValueError, match=r"needs a string, not dict; .* json\.dumps"):
        graph.set_source_config({"hidden": 8})
    assert graph.source_config is None


def test_numbered_names_that_meet_by_chance_advise_a_name_and_change_nothing(tmp_path):
    def plain(width):
        return FlowBuilder.from_(nn.Linear(4, width)).through(nn.Linear(width, 2)).build()

    path = tmp_path / "x.fdl"
    save_checkpoint_file(path, plain(8).named_parameters(), [])  # no hash: transfer by name
    other = plain(16)
    before = values(other)
    with pytest.raises(ShapeMismatch) as caught:
        other.load_checkpoint(path)
    assert "linear_1/weight: file [8, 4], model [16, 4]" in str(caught.value)
    assert "linear_2/weight: file [2, 8], model [2, 16]" in str(caught.value)
    assert "a tag or a name=" in str(caught.value)
    assert same(values(other), before)
    assert other.load_checkpoint(path, on_shape_mismatch="skip").loaded == ["linear_2/bias"]


@pytest.mark.parametrize("mode", ["error", "skip"])
def test_a_file_of_which_nothing_matches_is_refused(tmp_path, mode):
    path = tmp_path / "x.fdl"
    save_checkpoint_file(path, [("other/w", torch.ones(1))], [])
    graph = network()
    before = values(graph)
    with pytest.raises(CheckpointError) as caught:
        graph.load_checkpoint(path, on_shape_mismatch=mode)
    assert "nothing in checkpoint" in str(caught.value)
    assert "it wants enc/weight and so on, the file holds other/w" in str(caught.value)
    assert "a tag or a name=" in str(caught.value)
    assert same(values(graph), before)


def test_a_graph_with_other_tags_takes_over_a_migrated_file(tmp_path):
    old, new = network(), FlowBuilder.from_(nn.Linear(4, 8)).tag("encoder")
    new = new.through(nn.BatchNorm1d(8)).through(nn.Linear(8, 2)).tag("head").build()
    old.save_checkpoint(tmp_path / "old.fdl")
    with pytest.raises(ArchitectureMismatch):
        new.load_checkpoint(tmp_path / "old.fdl")
    report = migrate_checkpoint_file(
        tmp_path / "old.fdl",
        tmp_path / "new.fdl",
        new.qualified_parameters(),
        new.qualified_buffers(),
    )
    assert report.is_complete
    assert ("dec/weight", "head/weight") in report.remapped
    assert new.load_checkpoint(tmp_path / "new.fdl").missing == []
    inputs = torch.randn(5, 4)
    assert torch.equal(new.eval()(inputs), old.eval()(inputs))


def test_the_trainable_parameters_are_those_that_want_a_gradient():
    graph = network()
    graph.enc.weight.requires_grad_(False)
    names = {id(value): name for name, value in graph.named_parameters()}
    trainable = [names[id(value)] for value in graph.trainable_parameters()]
    assert "enc.weight" not in trainable
    assert len(trainable) == len(names) - 1


@pytest.mark.case("runtime", 83)
def test_a_shared_module_is_counted_and_stored_once_and_loads_into_an_untied_copy(tmp_path):
    shared = nn.Linear(2, 2)
    tied = FlowBuilder.from_(shared).through(shared).build()
    assert len(list(tied.parameters())) == 2
    tied.save_checkpoint(tmp_path / "x.fdl")
    assert checkpoint_keys(tmp_path / "x.fdl") == ["linear_1/weight", "linear_1/bias"]
    aliases = json.loads(checkpoint_metadata(tmp_path / "x.fdl")["aliases"])
    assert aliases == {
        "linear_2.bias": "linear_1.bias",
        "linear_2.weight": "linear_1.weight",
    }
    untied = FlowBuilder.from_(nn.Linear(2, 2)).through(nn.Linear(2, 2)).build()
    report = untied.load_checkpoint(tmp_path / "x.fdl")
    assert report.missing == report.skipped == []
    assert len(report.loaded) == 4
    assert torch.equal(untied.linear_1.weight, shared.weight)
    assert torch.equal(untied.linear_2.weight, shared.weight)
    assert torch.equal(untied.linear_2.bias, shared.bias)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_layer_is_drawn_before_its_first_input_and_saved_after_it(tmp_path):
    def lazy():
        return (
            FlowBuilder.from_(nn.LazyLinear(3)).through(nn.LazyBatchNorm1d(), name="norm").build()
        )

    graph, path = lazy(), tmp_path / "x.fdl"
    assert graph.tree_summary() == "(unlabelled): 2 nodes, 0 parameters"
    assert graph.param_summary().splitlines()[-1].split() == ["total", "4", "0", "trainable"]
    assert graph.svg().startswith(b"<svg")
    told = r"lazylinear_1.weight has no shape yet.*call the model once before"
    for keep in (lambda: graph.save_checkpoint(path), graph.snapshot_cpu):
        with pytest.raises(ValueError, match=told):
            keep()
    assert not path.exists()
    graph(torch.ones(2, 5))
    graph.save_checkpoint(path)
    new = lazy()
    with pytest.raises(ValueError, match=told):
        new.load_checkpoint(path)
    new(torch.zeros(2, 5))
    assert new.load_checkpoint(path).missing == []
    assert same(values(new), values(graph))
