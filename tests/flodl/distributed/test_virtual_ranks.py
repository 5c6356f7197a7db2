"""Virtual ranks that train real models: they end where real ranks end, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.virtual_ranks_group import Meeting, VirtualGroup
from benchmarks.virtual_ranks_real import Pair, builder, virtual
from flodl.ranks.group import Group
from flodl.ranks.settings import Policy
from flodl.train.runner import carry_out
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import plan_of

SEED = 1000
EXACT: dict[str, Any] = {"ms": (1.0, 3.0), "average_ms": 0.0, "epochs": 1, "exact": True}
# Deterministic ranks take an average as late as they may: on the clock, it takes very long.
LATE = {**EXACT, "average_ms": 1000.0, "anchor": 5}


def really(group: Group, pair: Pair) -> list[Tensor]:
    return carry_out(plan_of(builder(pair, SEED)), group).join().params


@pytest.mark.parametrize(
    "pair",
    [
        Pair(Policy.SYNC, **EXACT),
        Pair(Policy.CADENCE, **EXACT),
        Pair(Policy.CADENCE, momentum=0.9, **EXACT),
        Pair(Policy.ASYNC, **LATE),
        Pair(Policy.ASYNC, momentum=0.9, **LATE),
    ],
    ids=["sync", "cadence", "cadence, outer", "async", "async, outer"],
)
def test_two_virtual_ranks_end_with_the_weights_of_two_real_ones(ranks: Ranks, pair: Pair) -> None:
    _, weights, _ = virtual(pair, SEED)
    for real in ranks(2, really, pair):
        assert all(torch.equal(own, theirs) for own, theirs in zip(weights, real, strict=True))


@pytest.mark.parametrize("nested", [True, False])
def test_virtual_ranks_add_what_all_of_them_bring(nested: bool) -> None:
    meeting = Meeting(3, nested=nested)
    groups = [VirtualGroup(meeting, rank) for rank in range(3)]

    def summed(rank: int) -> float:
        tensor = torch.tensor([float(rank)])
        groups[rank].all_reduce_(tensor)
        return float(tensor)

    assert meeting.together(summed) == meeting.together(summed) == [3.0, 3.0, 3.0]
    meeting.close()


def test_virtual_ranks_exchange_whatever_a_group_exchanges() -> None:
    meeting = Meeting(2, nested=False)
    groups = [VirtualGroup(meeting, rank) for rank in range(2)]

    def exchanged(rank: int) -> list[Any]:
        group, tensor = groups[rank], torch.tensor([rank, 5 - rank])
        group.all_reduce_(tensor, maximum=True)
        first = torch.tensor([rank + 7])
        group.broadcast_(first)
        group.barrier()
        return [
            group.gather([rank]),
            group.gather_objects_to_first(str(rank)),
            group.broadcast_object(rank),
            group.scatter_objects([3, 4]),
            tensor.tolist(),
            first.item(),
        ]

    common = [[[0.0], [1.0]], 0, [1, 5], 7]
    for rank, found in enumerate(meeting.together(exchanged)):
        assert found[1] == (["0", "1"] if rank == 0 else None)
        assert found[3] == 3 + rank
        assert [found[at] for at in (0, 2, 4, 5)] == common
    meeting.close()
