"""Which part of a batch each rank computes: equal at first, then by measured speed.

A pure calculation: every rank that learns the same timings has the same shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, final

Cut: TypeAlias = tuple[int, ...]
"""Samples of each rank, in rank order."""

FLOOR = 0.05
"""No rank gets less than this part, so that its speed goes on being measured."""

_FIRST_BALANCE = 10
_BALANCE_EVERY = 50
_NEWEST = 0.3
"""Weight of the latest step in the running mean of a rank's speed."""


@final
class Shares:
    """The part of each rank, and what is known of its speed.

    Args:
        world_size: Number of ranks.
        balanced: Follow the measured speeds; otherwise the parts stay equal.
    """

    def __init__(self, world_size: int, *, balanced: bool = True) -> None:
        self._balanced = balanced
        self._steps = 0
        self.ratios: tuple[float, ...] = (1 / world_size,) * world_size
        self.throughput: tuple[float, ...] = (0.0,) * world_size
        """Samples per millisecond of each rank; 0 where nothing was measured yet."""

    def cut(self, samples: int) -> Cut:
        """Divide a batch."""
        return divide(samples, self.ratios)

    def learn(self, samples: Sequence[float], ms: Sequence[float]) -> None:
        """Take in one step.

        Args:
            samples: That each rank computed.
            ms: How long it took each rank; 0 where it was not measured.
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
    """Return parts in proportion to speeds, none of them below :data:`FLOOR`; their sum is 1."""
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
    """Divide whole samples by ratios; a rank gets none only where there are fewer than ranks.

    Largest remainders are rounded up, ties to the lowest rank.
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
