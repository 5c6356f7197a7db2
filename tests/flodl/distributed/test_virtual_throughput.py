"""The cases of throughput on a virtual clock: the real planning, without processes and time.

The slow suite measures the same with real ranks (``test_throughput.py``).
"""

from __future__ import annotations

import pytest

from flodl.ranks import Cluster, ElCheConfig, ScheduleConfig, predict
from flodl.ranks.settings import Policy
from flodl.ranks.simulate import Change, Prediction, simulate

TWO = (40.0, 100.0)
THREE = (25.0, 40.0, 100.0)
EQUAL = (40.0, 40.0)
AVERAGE_MS = 2.0


def work(ranks: int, policy: Policy, epochs: int = 5, batches: int = 350) -> ScheduleConfig:
    elche = ElCheConfig(world_size=ranks)
    return ScheduleConfig(elche=elche, policy=policy, epochs=epochs, batches_per_epoch=batches)


def predicted(ms: tuple[float, ...], average_ms: float = AVERAGE_MS) -> dict[str, Prediction]:
    cluster = Cluster(ms=ms, sync_ms=average_ms)
    return {one.mode: one for one in predict(cluster, work(len(ms), Policy.CADENCE))}


def ideal(ms: tuple[float, ...]) -> float:
    return sum(1000 / one for one in ms)


@pytest.mark.case("distributed", 32)
@pytest.mark.case("distributed", 33)
@pytest.mark.case("distributed", 35)
@pytest.mark.case("distributed", 39)
@pytest.mark.parametrize(
    ("ms", "mode", "least"),
    [(TWO, "cadence", 33.25), (TWO, "async", 33.6), (THREE, "cadence", 69.75),
     (EQUAL, "cadence", 47.5)],
)  # fmt: skip
def test_unequal_ranks_train_at_nearly_the_sum_of_their_speeds(ms, mode, least):
    found = predicted(ms)[mode]
    assert least <= found.batches_per_s <= ideal(ms)


@pytest.mark.case("distributed", 34)
def test_sync_is_as_fast_as_the_slowest_rank_allows():
    assert 18.5 <= predicted(TWO)["sync"].batches_per_s <= 20.0


@pytest.mark.case("distributed", 36)
@pytest.mark.case("distributed", 41)
def test_a_slow_rank_helps_and_torch_gains_less():
    found = predicted(TWO)
    for mode in ("cadence", "async"):
        assert found["solo"].ms / found[mode].ms >= 1.27
        assert found[mode].batches_per_s / found["torch-ddp"].batches_per_s >= 1.65


@pytest.mark.case("distributed", 37)
def test_windows_follow_a_rank_that_slows_down_within_one():
    slower = Change(at_ms=5_000, rank=1, ms=200.0)
    cluster = Cluster(ms=TWO, sync_ms=AVERAGE_MS, changes=(slower,))
    history = simulate(cluster, work(2, Policy.CADENCE, epochs=1, batches=1000))
    later = history.windows[len(history.windows) // 2 :]
    rates = [1000 * sum(one.counts) / (one.end_ms - one.start_ms) for one in later]
    # The rank of 200 ms and the one of 40 ms together: 30 batches per second.
    assert min(rates[:-1]) >= 27.6


@pytest.mark.case("distributed", 38)
def test_averages_that_take_long_become_rare():
    found = predicted(TWO, average_ms=150.0)["cadence"]
    assert 15 <= (found.anchor or 0) <= 17
    assert found.communication <= 0.10
