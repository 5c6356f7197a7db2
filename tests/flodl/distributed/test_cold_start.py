"""The first window, in which nobody knows how fast the ranks are."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import unequal_ranks
from flodl.distributed import windows
from flodl.distributed.group import Group
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import train


def watch_windows(group: Group, settings: dict[str, Any]) -> list[tuple[int, ...]]:
    """Train on ranks of which the second is four times as slow; return the batches of windows."""
    trained = []
    original = windows.close_window

    def spied(state: Any, plan: Any, reports: Any, config: Any) -> Any:
        trained.append(tuple(report.batches for report in reports))
        return original(state, plan, reports, config)

    windows.close_window = spied
    try:
        train(group, n=100 * 8, epochs=1, ms=(15.0, 60.0), settings=settings)
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
    assert found.rate >= unequal_ranks.COLD_BAR * unequal_ranks.ideal(unequal_ranks.TWO)
