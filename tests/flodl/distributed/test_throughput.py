"""What unequal ranks do per second; the benchmarks measure, and the bars stand here.

They take minutes and want an idle machine: ``pytest -m slow``.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from benchmarks import hetero, setup_mode, trainer_overhead
from benchmarks.measure import median_ratio
from benchmarks.unequal_ranks import (
    EPOCH,
    EQUAL,
    OTHERS,
    THREE,
    TWO,
    Steady,
    by_ratios,
    compare,
    costly_average,
    ideal,
    in_ranks,
    slow_down,
    solo,
    steady,
    whole_training,
)
from benchmarks.virtual_ranks_real import CLOSE, PAIRS, Pair, described, validated
from flodl.ranks.launch.start_ranks import launch_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def steadily(ms: Sequence[float], policy: str) -> Steady:
    return in_ranks(len(ms), steady, ms, policy)


@pytest.mark.case("distributed", 32)
def test_cadence_trains_unequal_ranks_at_the_sum_of_their_speeds() -> None:
    found = steadily(TWO, "cadence")
    assert found.rate >= 33.25
    assert found.rate <= ideal(TWO) * 1.01


@pytest.mark.case("distributed", 33)
def test_async_trains_unequal_ranks_at_the_sum_of_their_speeds() -> None:
    found = steadily(TWO, "async")
    assert found.rate >= 33.6
    assert found.rate <= ideal(TWO) * 1.01


@pytest.mark.case("distributed", 34)
def test_sync_is_as_fast_as_the_slowest_rank_allows() -> None:
    (found,) = in_ranks(2, compare, TWO, ("sync",), 1, 1)
    assert 18.5 <= found["sync"] <= 20.0


@pytest.mark.case("distributed", 35)
def test_cadence_trains_three_unequal_ranks_at_the_sum_of_their_speeds() -> None:
    found = steadily(THREE, "cadence")
    assert found.rate >= 69.75
    assert found.rate <= ideal(THREE) * 1.01


@pytest.mark.case("distributed", 36)
def test_a_slow_rank_makes_a_whole_training_faster_than_the_fast_one_alone() -> None:
    whole = in_ranks(2, whole_training, TWO, ("cadence", "async"))
    alone = solo(TWO[0], 5)
    assert whole["cadence"] <= 55.0
    assert whole["async"] <= 54.0
    assert alone == pytest.approx(5 * EPOCH * TWO[0] / 1000, rel=0.02)
    assert alone / whole["cadence"] >= 1.27
    assert alone / whole["async"] >= 1.27


@pytest.mark.case("distributed", 37)
def test_windows_follow_a_rank_that_slows_down_within_one() -> None:
    windows = in_ranks(2, slow_down, TWO, 200.0)
    assert windows[0]["ms"] <= 1.25 * 10 * TWO[1]
    assert windows[3]["rate"] >= 27.6


@pytest.mark.case("distributed", 38)
def test_averages_that_take_long_become_rare() -> None:
    found = in_ranks(2, costly_average, TWO, 150.0)
    assert 15 <= found["anchor"] <= 17
    assert found["overhead"] <= 0.10


@pytest.mark.case("distributed", 39)
def test_equal_ranks_train_equally_much() -> None:
    found = steadily(EQUAL, "cadence")
    assert found.counts[0] == found.counts[1]
    assert found.rate >= 47.5


@pytest.mark.case("distributed", 40)
def test_a_loop_of_ones_own_divides_batches_by_the_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLODL_SIM_MS", ",".join(map(str, TWO)))
    found = launch_ranks(setup_mode.plain_loop, (200, setup_mode.WARM_UP), 2, simulated=True)[0]
    assert found.batches_per_second >= 0.85 * ideal(TWO)
    assert found.ratios == pytest.approx((5 / 7, 2 / 7), abs=0.03)
    assert found.parts == pytest.approx((50, 20), abs=2)


@pytest.mark.case("distributed", 40)
def test_sync_with_samples_cut_by_the_speeds_makes_no_rank_wait() -> None:
    assert in_ranks(2, by_ratios, TWO) >= 0.90 * ideal(TWO)


@pytest.mark.case("distributed", 41)
def test_unequal_ranks_train_faster_than_with_torch() -> None:
    (found,) = in_ranks(2, compare, TWO, ("cadence", "async", "torch-ddp"), 1, 2)
    assert found["torch-ddp"] <= 20.0
    assert found["cadence"] / found["torch-ddp"] >= 1.65
    assert found["async"] / found["torch-ddp"] >= 1.65


def test_ways_of_others_train_what_their_ranks_can_at_most() -> None:
    ms = (4.0, 10.0)
    for found in in_ranks(2, compare, ms, tuple(OTHERS), 3, 1):
        for way, most in {"sync, cut by speed": ideal(ms), "the fast rank alone": 250.0}.items():
            assert 0 < found[way] <= 1.01 * most
        for way in ("torch-ddp", "PostLocalSGD, every 4", "PostLocalSGD, every 16"):
            assert 0 < found[way] <= 1.01 * 200.0


@pytest.mark.parametrize("pair", PAIRS)
def test_the_times_of_virtual_ranks_are_those_of_real_ones(pair: Pair) -> None:
    (row,) = validated(pairs=[pair])
    assert row["measured_ms"] == pytest.approx(row["predicted_ms"], rel=CLOSE)
    assert row["validates"] in described([{**row, "date": ""}])


@pytest.mark.case("distributed", 42)
def test_alone_a_trainer_costs_next_to_nothing_beside_a_loop_by_hand() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        task = trainer_overhead.Task(
            name="small", width=64, hidden=256, batch=64, steps=250, device=torch.device("cpu")
        )
        with trainer_overhead.quiet():
            found = trainer_overhead.turns(task, "eager", True, 40)
    finally:
        torch.set_num_threads(threads)
    assert median_ratio(found.trainer, found.loop) <= 1.02


@pytest.mark.parametrize("name", list(hetero.SUBJECTS))
def test_ranks_that_compute_come_near_the_sum_of_their_speeds(name: str) -> None:
    way, bar = "cadence", hetero.SUBJECTS[name].bars["cadence"]
    # Long enough for windows to have grown: the first ones are part of what is measured.
    rounds = in_ranks(2, hetero.compare, name, 3, 20.0, "auto", (way,))
    assert bar.limit <= hetero.part_of_ideal(way, rounds) <= hetero.CREDIBLE
    fast, slow = rounds[-1].ways[way].shares
    assert fast / slow == pytest.approx(2.5, rel=0.25)
