"""The first window, in which nobody knows how fast the ranks are."""

from __future__ import annotations

import time
from typing import Any

import pytest
from torch import Tensor, nn

from benchmarks import unequal_ranks
from flodl import Batch
from flodl.ranks.group import Group
from flodl.train.policies import windows
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import train


def watch_windows(group: Group, settings: dict[str, Any]) -> list[tuple[int, ...]]:
    """Keep the second rank until the first is far ahead; return what the windows took."""
    trained = []
    original = windows.close_window

    def spied(state: Any, plan: Any, reports: Any, config: Any) -> Any:
        trained.append(tuple(report.batches for report in reports))
        return original(state, plan, reports, config)

    def loss(net: nn.Module, batch: Batch, rank: int, step: int) -> Tensor:
        if rank == 0:
            group.store.add("ahead", 1)
        elif step == 2 and "max_batch_diff" not in settings:
            until = time.monotonic() + 20
            while group.store.add("ahead", 0) < 6 and time.monotonic() < until:
                time.sleep(0.01)
        value: Tensor = (net(batch[0]) - batch[1]).square().mean()
        return value

    windows.close_window = spied
    try:
        train(group, n=100 * 8, epochs=1, loss=loss, settings=settings)
    finally:
        windows.close_window = original
    return trained


@pytest.mark.parametrize("backend", ["nccl", "cpu"])
def test_a_fast_rank_trains_on_in_the_first_window_instead_of_waiting(
    ranks: Ranks, backend: str
) -> None:
    one, two = ranks(2, watch_windows, {"backend": backend})
    assert one == two
    fast, slow = one[0]
    # Each has three batches; the slow one takes no more once it is done with them.
    assert slow == 3
    assert fast >= 6
    assert sum(map(sum, zip(*one, strict=True))) == 100


def test_in_lockstep_no_rank_runs_ahead_in_the_first_window(ranks: Ranks) -> None:
    for found in ranks(2, watch_windows, {"max_batch_diff": 0}):
        assert found[0] == (3, 3)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_unequal_ranks_reach_the_sum_of_their_speeds_from_a_cold_start() -> None:
    found = unequal_ranks.in_ranks(2, unequal_ranks.cold_start, unequal_ranks.TWO, "cadence", 20.0)
    assert unequal_ranks.COLD_BAR.passes(found.rate / unequal_ranks.ideal(unequal_ranks.TWO))
