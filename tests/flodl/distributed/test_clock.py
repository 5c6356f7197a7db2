"""How the clocks of ranks are compared: exact bounds, and never outside of them."""

from __future__ import annotations

import random
import time

import pytest

from flodl.ranks.clocks import ClockOffset, clock_offsets
from flodl.ranks.group import Group, LocalGroup
from tests.rows import each_row


class Scripted:
    """A gather of two ranks that takes place on one true clock, seen by the second rank.

    Rank 1's clock is ``ahead`` of the true one, which is rank 0's.
    """

    world_size = 2

    def __init__(self, rank: int, ahead: float, course: list[tuple[float, float, float, float]]):
        self.rank, self.ahead = rank, ahead
        self.course = course
        self.readings = [
            moment + (ahead if rank else 0.0)
            for begin0, end0, begin1, end1 in course
            for moment in ((begin1, end1) if rank else (begin0, end0))
        ]

    def now(self) -> float:
        return self.readings.pop(0)

    def gather(self, values: list[float]) -> list[list[float]]:
        if len(values) == 1:
            begin0, _, begin1, _ = self.course[len(self.course) - (len(self.readings) + 1) // 2]
            return [[begin0], [begin1 + self.ahead]]
        return [
            [end0 for _, end0, _, _ in self.course],
            [end1 + self.ahead for _, _, _, end1 in self.course],
        ]


def course(rng: random.Random) -> list[tuple[float, float, float, float]]:
    """Rounds in which nobody ends before both have begun."""
    rounds, now = [], 0.0
    for _ in range(6):
        begins = (now + rng.uniform(0, 5), now + rng.uniform(0, 5))
        met = max(begins)
        ends = (met + rng.uniform(0, 3), met + rng.uniform(0, 3))
        rounds.append((begins[0], ends[0], begins[1], ends[1]))
        now = max(ends)
    return rounds


def offsets(rank: int, ahead: float, rounds: list[tuple[float, ...]]) -> list[ClockOffset]:
    group = Scripted(rank, ahead, rounds)
    return clock_offsets(group, group.now, rounds=len(rounds))


@each_row("seed", range(20))
def test_the_truth_lies_within_the_bounds_and_all_ranks_agree(seed: int) -> None:
    rng = random.Random(seed)
    rounds, ahead = course(rng), rng.uniform(-1e6, 1e6)
    found = offsets(1, ahead, rounds)
    assert found[0] == (0.0, 0.0)
    assert abs(found[1].ms + ahead) <= found[1].within_ms + 1e-6
    assert offsets(0, ahead, rounds) == found
    shortest = min(e0 - b0 + e1 - b1 for b0, e0, b1, e1 in rounds)
    assert found[1].within_ms <= shortest / 2 + 1e-6


def test_one_quick_round_is_enough() -> None:
    rounds = [(0.0, 9.0, 8.0, 8.5), (10.0, 10.2, 10.1, 10.2), (11.0, 19.0, 11.1, 30.0)]
    (_, found) = offsets(1, 500.0, rounds)
    assert found.ms == pytest.approx(-500.0, abs=0.1)
    assert found.within_ms == pytest.approx(0.1, abs=0.051)


def test_one_rank_is_exact() -> None:
    assert clock_offsets(LocalGroup(), time.monotonic) == [ClockOffset(0.0, 0.0)]
    with pytest.raises(ValueError, match="rounds=0: comparing clocks needs at least one"):
        clock_offsets(LocalGroup(), time.monotonic, rounds=0)


def with_shifted_clock(group: Group, shift_ms: float) -> list[ClockOffset]:
    """Compare clocks that are known to be ``shift_ms`` apart from rank to rank."""
    return clock_offsets(group, lambda: time.monotonic() * 1000 + shift_ms * group.rank)


def test_processes_find_the_shift_of_their_clocks(ranks) -> None:
    results = ranks(3, with_shifted_clock, 1234.5)
    assert results[0] == results[1] == results[2]
    for rank, offset in enumerate(results[0]):
        assert abs(offset.ms + 1234.5 * rank) <= offset.within_ms + 1e-6
