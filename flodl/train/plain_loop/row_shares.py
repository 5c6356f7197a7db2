"""Decide which part of a batch each rank computes: equal at first, then by measured speed.

This is a pure calculation: ranks that learn the same timings have the same shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, final

Cut: TypeAlias = tuple[int, ...]
"""Samples of each rank, in rank order."""

FLOOR = 0.05
"""The smallest part of a rank; a rank without rows could not be measured any more."""

_FIRST_BALANCE = 10
_BALANCE_EVERY = 50
_NEWEST = 0.3
"""Weight of the latest step in the running mean of a rank's speed."""


@final
class Shares:
    """The part and the measured speed of each rank.

    Args:
        world_size: Number of ranks.
        balanced: Whether the parts follow the measured speeds; otherwise they stay equal.
    """

    def __init__(self, world_size: int, *, balanced: bool = True) -> None:
        self._balanced = balanced
        self._steps = 0
        self.ratios: tuple[float, ...] = (1 / world_size,) * world_size
        self.throughput: tuple[float, ...] = (0.0,) * world_size
        """Samples per millisecond of each rank; 0 before the first measurement."""

    def cut(self, samples: int) -> Cut:
        """Divide a batch among the ranks."""
        return divide(samples, self.ratios)

    def learn(self, samples: Sequence[float], ms: Sequence[float]) -> None:
        """Update the speeds, and at some steps the parts, after one step.

        Args:
            samples: Samples that each rank computed.
            ms: Time of each rank; 0 if it was not measured.
        """
        self._steps += 1
        self.throughput = tuple(
            _mean(known, count / time) if count > 0 and time > 0 else known
            for known, count, time in zip(self.throughput, samples, ms, strict=True)
        )
        due = self._steps == _FIRST_BALANCE or self._steps % _BALANCE_EVERY == 0
        if due and self._balanced and all(self.throughput):
            self.ratios = proportional(self.throughput)


def _mean(known: float, new: float) -> float:
    return _NEWEST * new + (1 - _NEWEST) * known if known else new


def proportional(speeds: Sequence[float]) -> tuple[float, ...]:
    """Return parts in proportion to speeds, each at least :data:`FLOOR`; their sum is 1.

    With 20 or more ranks, all parts are equal.
    """
    floor = min(FLOOR, 1 / len(speeds))
    held: set[int] = set()
    while True:
        free = 1 - floor * len(held)
        total = sum(speed for rank, speed in enumerate(speeds) if rank not in held)
        parts = tuple(
            floor if rank in held else free * speed / total for rank, speed in enumerate(speeds)
        )
        below = {rank for rank, part in enumerate(parts) if part < floor} - held
        if not below:
            return parts
        held |= below


def divide(samples: int, ratios: Sequence[float]) -> Cut:
    """Divide whole samples by ratios; a rank gets 0 only if there are fewer samples than ranks.

    The largest remainders are rounded up; ties go to the lowest rank.
    """
    exact = [samples * ratio for ratio in ratios]
    counts = [int(part) for part in exact]
    by_remainder = sorted(range(len(ratios)), key=lambda rank: (counts[rank] - exact[rank], rank))
    for rank in by_remainder[: samples - sum(counts)]:
        counts[rank] += 1
    while samples >= len(counts) and 0 in counts:
        counts[counts.index(max(counts))] -= 1
        counts[counts.index(0)] += 1
    return tuple(counts)
