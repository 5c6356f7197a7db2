"""Copies of weights on the CPU that training cannot reach."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl import ArchitectureMismatch, FlowBuilder, Graph, ModelSnapshot, checkpoint_metadata


def network(width: int = 3) -> Graph:
    return (
        FlowBuilder.from_(nn.Linear(2, width)).through(nn.BatchNorm1d(width)).label("net").build()
    )


def train_once(graph: Graph) -> None:
    graph.set_optimizer(lambda params: torch.optim.SGD(params, lr=0.5))
    graph(torch.randn(4, 2)).square().sum().backward()
    graph.step()


@pytest.mark.case("runtime", 74)
def test_a_snapshot_stays_as_it_was_and_its_file_loads_with_the_hash_checked(tmp_path):
    graph = network()
    before = {name: value.clone() for name, value in graph.state_dict().items()}
    graph.record_scalar("loss", 0.5)
    graph.flush()
    snapshot = graph.snapshot_cpu()

    train_once(graph)

    assert isinstance(snapshot, ModelSnapshot)
    taken = dict([*snapshot.params, *snapshot.buffers])
    assert taken.keys() == before.keys()
    assert all(torch.equal(taken[name], before[name]) for name in before)
    assert not torch.equal(graph.state_dict()["linear_1.weight"], before["linear_1.weight"])
    assert (snapshot.epoch, snapshot.metrics) == (1, (("loss", 0.5),))

    snapshot.save_file(tmp_path / "net.fdl")
    report = graph.load_checkpoint(tmp_path / "net.fdl")
    assert (report.missing, report.skipped) == ([], [])
    assert all(torch.equal(graph.state_dict()[name], before[name]) for name in before)
    metadata = checkpoint_metadata(tmp_path / "net.fdl")
    assert metadata["structural_hash"] == graph.structural_hash()
    assert (metadata["label"], metadata["epoch"]) == ("net", "1")
    with pytest.raises(ArchitectureMismatch):
        network(width=5).load_checkpoint(tmp_path / "net.fdl")


def test_shared_weights_are_kept_once_and_load_under_both_names(tmp_path):
    shared = nn.Linear(2, 2)
    graph = FlowBuilder.from_(shared).through(nn.GELU()).through(shared).build()
    graph.snapshot_cpu().save_file(tmp_path / "snapshot.fdl")
    graph.save_checkpoint(tmp_path / "graph.fdl")
    aliases = checkpoint_metadata(tmp_path / "snapshot.fdl")["aliases"]
    assert aliases == checkpoint_metadata(tmp_path / "graph.fdl")["aliases"]

    untied = FlowBuilder.from_(nn.Linear(2, 2)).through(nn.GELU()).through(nn.Linear(2, 2)).build()
    untied.load_checkpoint(tmp_path / "snapshot.fdl")
    x = torch.randn(3, 2)
    assert torch.equal(untied(x), graph(x))
