"""Ranks that share a model: what each keeps for itself in the one checkpoint of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from flodl.checkpoint.generators import same
from flodl.checkpoint.training import TrainingFile
from flodl.ranks.group import Group
from flodl.train.run.loop_state import BEGINNING
from flodl.train.run.part_states import Parts
from flodl.train.run.training_state import TrainingState
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.test_own_state_ranks import Queue


class Remembering(nn.Linear):
    """A layer whose extra state holds a tensor of each rank and a parameter that ranks share."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.seen: Any = {}

    def get_extra_state(self) -> Any:
        return self.seen

    def set_extra_state(self, state: Any) -> None:
        self.seen = state


def sharing_parts(group: Group) -> Any:
    """A model that two ranks share, its optimizer, and a queue that each rank fills."""
    torch.manual_seed(0)
    model = Remembering()
    fully_shard(model, mesh=init_device_mesh("cpu", (group.world_size,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Parts(model=model, optimizer=optimizer, registered={"queue": Queue()})


def kept(parts: Any) -> tuple[Any, Any, list[float]]:
    """What a rank keeps for itself; draws from its generator."""
    seen = {**parts.model.seen, "weight": None} if parts.model.seen else {}
    return parts.registered["queue"].values, seen, torch.rand(2).tolist()


def saved(group: Group, path: str) -> tuple[Any, Any, list[float]]:
    """Save a training whose ranks keep different values; return those of this rank."""
    parts = sharing_parts(group)
    mine = torch.tensor([10.0, 20.0]) + group.rank
    parts.registered["queue"].values = [mine, (group.rank, "a"), *["more"] * group.rank]
    parts.model.seen = {"calls": mine, "rank": group.rank, "weight": parts.model.weight}
    torch.manual_seed(100 + group.rank)
    parts.model(torch.ones(1, 3))  # the ranks hold whole parameters until the backward pass
    write(parts, path)
    return kept(parts)


def write(parts: Any, path: str) -> None:
    state = TrainingState.capture(parts, BEGINNING)
    if state is not None:  # on the first rank
        state.write(path)
    torch.distributed.barrier()


def restored(group: Group, path: str) -> tuple[tuple[Any, Any, list[float]], bool]:
    """Restore new parts; return what this rank keeps, and whether the shared weight is in it."""
    parts = sharing_parts(group)
    torch.nn.init.zeros_(parts.model.weight)
    TrainingState.restore(path, parts)
    inside, weight = parts.model.seen["weight"], parts.model.weight
    whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
    return kept(parts), bool(whole.any()) and torch.equal(inside, whole)


def test_every_rank_gets_back_what_it_kept_for_itself(ranks: Ranks, tmp_path: Path) -> None:
    path = str(tmp_path / "shared.fdl")
    before = ranks(2, saved, path)
    after, with_weight = zip(*ranks(2, restored, path), strict=True)
    assert same(list(after), before)
    assert with_weight == (True, True)


def test_another_number_of_ranks_begins_with_what_the_first_one_kept(
    ranks: Ranks, tmp_path: Path
) -> None:
    path = str(tmp_path / "shared.fdl")
    first, _ = ranks(2, saved, path)
    for (values, seen, _), _ in ranks(3, restored, path):
        assert same(values, first[0])
        assert same(seen, first[1])


def saved_alike(group: Group, path: str) -> None:
    """Save a training in which only the generators of the ranks differ."""
    parts = sharing_parts(group)
    torch.manual_seed(100 + group.rank)
    write(parts, path)


def test_what_all_ranks_have_in_common_is_in_the_file_once(ranks: Ranks, tmp_path: Path) -> None:
    ranks(2, saved_alike, str(tmp_path / "shared.fdl"))
    file = TrainingFile.open(tmp_path / "shared.fdl")
    assert [list(one) for one in file.value("ranks")] == [["random"], ["random"]]


def sharing_unknown(group: Group) -> str:
    parts = sharing_parts(group)
    parts.registered["queue"].values = [object()]
    with pytest.raises(ValueError, match="object") as told:
        TrainingState.check(parts)
    return str(told.value)


def test_an_object_that_a_checkpoint_cannot_keep_is_told_on_all_ranks(ranks: Ranks) -> None:
    one, other = ranks(2, sharing_unknown)
    assert one == other
