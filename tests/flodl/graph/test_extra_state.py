"""What modules return from ``get_extra_state`` is part of every checkpoint of a graph."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flodl.checkpoint import (
    checkpoint_keys,
    checkpoint_metadata,
    migrate_checkpoint_file,
    save_checkpoint_file,
)
from flodl.errors import CheckpointError
from flodl.graph import FlowBuilder, Graph
from tests.rows import each_row

STATE: dict[Any, Any] = {
    "tensor": torch.arange(3),
    "sparse": torch.eye(2).to_sparse(),
    "numbers": [1, 2.5, float("inf"), 1 + 2j, True],
    "text": "ä",
    "none": None,
    "nested": ({"a": (1, [2])}, []),
    ("a", 1): {0.5: {None: False}},
}


class Counting(nn.Linear):
    """A layer with state beside its tensors."""

    def __init__(self, state: Any = None) -> None:
        super().__init__(2, 2)
        self.state: Any = {} if state is None else state

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        if state == "refused":
            raise ValueError("no such state")
        self.state = state


def text(value: Any) -> str:
    return repr({str(k): v for k, v in value.items()} if isinstance(value, dict) else value)


def graph(state: Any = None) -> Graph:
    return FlowBuilder.from_(Counting(state)).through(nn.ReLU()).through(nn.Linear(2, 2)).build()


def test_a_graph_keeps_it_exactly_and_equal_graphs_give_equal_bytes(tmp_path: Path) -> None:
    one = graph(STATE)
    one.save_checkpoint(tmp_path / "a.fdl")
    one.save_checkpoint(tmp_path / "b.fdl")
    assert (tmp_path / "a.fdl").read_bytes() == (tmp_path / "b.fdl").read_bytes()
    other = graph()
    report = other.load_checkpoint(tmp_path / "a.fdl")
    assert text(other.counting_1.state) == text(STATE)
    assert "counting_1/_extra_state" in report.loaded
    assert report.missing == report.skipped == []
    assert "extra_state" not in checkpoint_metadata(tmp_path / "a.fdl")
    assert not any("extra" in key for key in checkpoint_keys(tmp_path / "a.fdl"))


def test_a_snapshot_keeps_it_as_it_was(tmp_path: Path) -> None:
    one = graph({"steps": torch.tensor([1])})
    snapshot = one.snapshot_cpu()
    one.counting_1.state["steps"] += 1
    snapshot.save_file(tmp_path / "x.fdl")
    other = graph()
    other.load_checkpoint(tmp_path / "x.fdl")
    assert other.counting_1.state["steps"].tolist() == [1]


def labelled(state: Any = None) -> Graph:
    inner = FlowBuilder.from_(Counting(state)).through(nn.Linear(2, 2)).label("inner").build()
    return FlowBuilder.from_(nn.Linear(2, 2)).through(inner).through(nn.Linear(2, 2)).build()


def test_a_subgraph_takes_its_own_from_a_file_of_the_whole_or_of_itself(tmp_path: Path) -> None:
    whole = labelled({"steps": 3})
    whole.save_checkpoint(tmp_path / "whole.fdl")
    whole.subgraph("inner").save_checkpoint(tmp_path / "part.fdl")
    for file in ("whole.fdl", "part.fdl"):
        other = labelled()
        report = other.load_subgraph_checkpoint("inner", tmp_path / file)
        assert other.subgraph("inner").counting_1.state == {"steps": 3}
        assert "counting_1/_extra_state" in report.loaded
        assert report.missing == []


@each_row(
    ("state", "told"),
    [
        (deque([1]), "what it returns is a deque"),
        ({"a": [{"b": object()}]}, "what it returns/a/0/b is a object"),
        ({frozenset(): 1}, "what it returns has a key that is a frozenset"),
        ({"t": torch.empty(1, device="meta")}, r"\.extra/counting_1/t is on the meta device"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_module(
    state: Any, told: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"counting_1.*{told}|{told}"):
        graph(state).save_checkpoint(tmp_path / "x.fdl")
    assert not list(tmp_path.iterdir())


def test_a_module_that_cannot_take_it_back_is_refused(tmp_path: Path) -> None:
    class Gives(nn.Linear):
        def get_extra_state(self) -> Any:
            return 1

    one = FlowBuilder.from_(Gives(2, 2)).build()
    with pytest.raises(ValueError, match=r"gives_1 \(Gives\) has get_extra_state and no set_extra"):
        one.save_checkpoint(tmp_path / "x.fdl")


def test_a_state_that_a_module_refuses_changes_nothing(tmp_path: Path) -> None:
    graph("refused").save_checkpoint(tmp_path / "x.fdl")
    other = graph({"own": 1})
    before = {name: tensor.clone() for name, tensor in other.named_parameters()}
    with pytest.raises(CheckpointError, match=r"counting_1 \(Counting\) refuses the extra state"):
        other.load_checkpoint(tmp_path / "x.fdl")
    assert all(torch.equal(before[name], tensor) for name, tensor in other.named_parameters())
    assert other.counting_1.state == {"own": 1}


def test_files_and_graphs_without_it_say_so(tmp_path: Path) -> None:
    one = graph({"own": 1})
    save_checkpoint_file(tmp_path / "x.fdl", one.named_parameters(), [])
    assert one.load_checkpoint(tmp_path / "x.fdl").missing == ["counting_1/_extra_state"]
    assert one.counting_1.state == {"own": 1}
    one.save_checkpoint(tmp_path / "y.fdl")
    plain = nn.ModuleDict({"new": nn.Linear(2, 2), "last": nn.Linear(2, 2)})
    report = migrate_checkpoint_file(
        tmp_path / "y.fdl", tmp_path / "z.fdl", plain.named_parameters(), []
    )
    assert report.dropped == ["counting_1/_extra_state"]
