"""ElChe: choose how many batches each rank trains between two averages. Pure functions.

Faster ranks get more batches, in proportion to their measured speed, so that all ranks arrive at
the average at the same time. The functions use no clock, no random numbers, no input or output.
Every rank that passes the same reports gets the same state, bit by bit (IEEE 754 float64).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

Counts: TypeAlias = tuple[int, ...]
"""Batches of each rank."""

WARM_UP = 3
"""Batches of each rank in the first window while its speed is unknown."""

DEAD_ZONE = 0.10
"""A count changes only if it differs from its target by more than this fraction of itself."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ElCheConfig:
    """Limits; see ``DdpRunConfig`` for the meaning."""

    world_size: int
    anchor: int = 10
    min_anchor: int | None = None
    max_anchor: int = 200
    overhead_target: float = 0.10
    max_batch_diff: int | None = None

    @property
    def first_anchor(self) -> int:
        """The anchor at the start."""
        return min(self.anchor, self.max_anchor)

    @property
    def floor(self) -> int:
        """The lower limit of the anchor when cheap communication shortens the windows."""
        return min(
            self.first_anchor if self.min_anchor is None else self.min_anchor, self.max_anchor
        )


@final
@dataclass(frozen=True, slots=True)
class RankReport:
    """Measurements of one rank in one window."""

    wall_ms: float
    """Time of its batches, without waiting or averaging."""
    batches: int
    sync_ms: float = 0.0
    """Time from the start of the exchange on this rank until it had the average."""


@final
@dataclass(frozen=True, slots=True)
class ElCheState:
    """The state from which the next window is planned."""

    anchor: int
    """Batches of the slowest rank."""
    counts: Counts
    ms: tuple[float, ...]
    """Milliseconds per batch; relative values before the first measurement, 0 without a hint."""
    calibrated: bool = False
    """Whether ``ms`` was measured."""

    @property
    def window_ms(self) -> float:
        """Length of a window: the time of the slowest rank for ``anchor`` batches."""
        return self.anchor * max(self.ms)


def initial_state(config: ElCheConfig, speeds: Sequence[float] | None = None) -> ElCheState:
    """Return the state before any report.

    Args:
        config: Limits.
        speeds: Relative speed of each rank, if known. The first counts and ``ms`` follow it at
            once. Without it every rank starts with the same few batches.

    Raises:
        ValueError: There is not one speed per rank, or a speed is not above 0.
    """
    anchor = config.first_anchor
    if speeds is None:
        equal = (min(WARM_UP, config.max_anchor),) * config.world_size
        return ElCheState(anchor, equal, (0.0,) * config.world_size)
    if len(speeds) != config.world_size:
        raise ValueError(f"{len(speeds)} speeds for {config.world_size} ranks: give one per rank")
    if not all(math.isfinite(speed) and speed > 0 for speed in speeds):
        raise ValueError(f"speeds={tuple(speeds)!r}: they must be numbers above 0")
    fastest = max(speeds)
    ms = tuple(fastest / speed for speed in speeds)
    return ElCheState(anchor, _within_lead(_targets(anchor, ms), config), ms)


def elche_step(
    state: ElCheState, reports: Sequence[RankReport], config: ElCheConfig, *, suppress: bool = False
) -> ElCheState:
    """Return the next state from the measurements of all ranks in a window.

    Counts and anchor stay unchanged until every rank has a measured or a hinted speed.

    Args:
        state: The state from which the window was planned.
        reports: One per rank.
        config: Limits.
        suppress: Whether to keep the anchor from growing.
    """
    ms = _measured(state, reports)
    if not all(ms) or not any(map(_is_measurement, reports)):
        return ElCheState(state.anchor, state.counts, ms, state.calibrated)
    anchor = _next_anchor(state.anchor, max(ms), reports, config, suppress=suppress)
    counts = _targets(anchor, ms)
    if state.calibrated and anchor == state.anchor:
        counts = tuple(
            target if abs(target - now) > DEAD_ZONE * now else now
            for target, now in zip(counts, state.counts, strict=True)
        )
    return ElCheState(anchor, _within_lead(counts, config), ms, calibrated=True)


def communication(reports: Sequence[RankReport]) -> tuple[float, tuple[float, ...]]:
    """Return the cost of the exchange, and how long each rank waited for the last one, in ms.

    The last rank to arrive does not wait, so the smallest time in the exchange is its cost.
    """
    cost = min(report.sync_ms for report in reports)
    return cost, tuple(report.sync_ms - cost for report in reports)


def clamp_total(counts: Sequence[int], total: int) -> Counts:
    """Scale counts down in proportion, so that their sum is at most ``total``.

    Counts whose sum is not above ``total`` are returned unchanged. Otherwise the result adds up to
    ``total`` exactly, and a rank may get 0. The largest remainders are rounded up; ties go to the
    lowest rank.
    """
    wanted = sum(counts)
    if wanted <= total:
        return tuple(counts)
    parts = [divmod(count * total, wanted) for count in counts]
    by_remainder = sorted(range(len(parts)), key=lambda rank: (-parts[rank][1], rank))
    favoured = set(by_remainder[: total - sum(whole for whole, _ in parts)])
    return tuple(whole + (rank in favoured) for rank, (whole, _) in enumerate(parts))


def split(total: int, ms: Sequence[float]) -> Counts:
    """Give each of ``total`` batches to the rank that would finish it first.

    Args:
        total: Number of batches to give.
        ms: Milliseconds per batch of each rank, or relative times. A 0 means unknown; this rank
            counts as slow as the slowest. Ties go to the lowest rank.
    """
    slowest = max(ms) or 1.0
    paces = [pace or slowest for pace in ms]
    counts = [0] * len(paces)
    finishes = [(pace, rank) for rank, pace in enumerate(paces)]
    heapq.heapify(finishes)
    for _ in range(total):
        rank = finishes[0][1]
        counts[rank] += 1
        heapq.heapreplace(finishes, ((counts[rank] + 1) * paces[rank], rank))
    return tuple(counts)


def nudge(state: ElCheState, factor: float, config: ElCheConfig) -> ElCheState:
    """Shorten the windows at once by a factor of 0.1 to 1; never lengthen them.

    The floor of the anchor does not apply here: ranks that drift apart must average sooner.
    """
    anchor = max(1, _ceil(state.anchor * min(max(factor, 0.1), 1.0)))
    if all(state.ms):
        counts = _targets(anchor, state.ms)
    else:
        counts = tuple(min(count, anchor) for count in state.counts)
    return ElCheState(anchor, _within_lead(counts, config), state.ms, state.calibrated)


def _is_measurement(report: RankReport) -> bool:
    return report.batches > 0 and report.wall_ms > 0 and math.isfinite(report.wall_ms)


def _measured(state: ElCheState, reports: Sequence[RankReport]) -> tuple[float, ...]:
    """Return the milliseconds per batch after a window: smoothed, or raw at first."""
    fresh = [r.wall_ms / r.batches if _is_measurement(r) else 0.0 for r in reports]
    if not state.calibrated and all(state.ms):
        return _scaled(state.ms, fresh)
    return tuple(
        _smoothed(before, now) if before and now else now or before
        for before, now in zip(state.ms, fresh, strict=True)
    )


def _scaled(hinted: Sequence[float], fresh: Sequence[float]) -> tuple[float, ...]:
    """Replace hinted values with measured ones; scale the remaining hints to the same unit."""
    pairs = [(now, hint) for now, hint in zip(fresh, hinted, strict=True) if now]
    if not pairs:
        return tuple(hinted)
    unit = sum(now for now, _ in pairs) / sum(hint for _, hint in pairs)
    return tuple(now or hint * unit for now, hint in zip(fresh, hinted, strict=True))


def _smoothed(before: float, now: float) -> float:
    """Return a running mean in which larger changes have more weight."""
    weight = min(max(abs(now - before) / before, 0.1), 0.8)
    return weight * now + (1 - weight) * before


def _next_anchor(
    anchor: int, slow: float, reports: Sequence[RankReport], config: ElCheConfig, *, suppress: bool
) -> int:
    cost, _ = communication(reports)
    # A short window, as in a warm-up or at the end of an epoch, must not look expensive.
    walls = (report.wall_ms for report in reports if _is_measurement(report))
    length = max(*walls, anchor * slow)
    overhead = cost / length
    if overhead > config.overhead_target:
        if suppress:
            return anchor
        grown = _ceil(anchor * overhead / config.overhead_target)
        return min(max(grown, config.floor), config.max_anchor)
    if overhead < config.overhead_target / 2 and anchor > config.floor:
        return anchor - 1
    return anchor


def _targets(anchor: int, ms: Sequence[float]) -> Counts:
    """Return counts that take every rank as long as the slowest takes for ``anchor`` batches."""
    slow = max(ms)
    return tuple(
        anchor if slow - own <= 1e-6 else max(1, math.floor(anchor * slow / own + 0.5))
        for own in ms
    )


def _within_lead(counts: Counts, config: ElCheConfig) -> Counts:
    if config.max_batch_diff is None:
        return counts
    most = min(counts) + config.max_batch_diff
    return tuple(min(count, most) for count in counts)


def _ceil(value: float) -> int:
    # 10 · 0.33 / 0.11 is a little above 30 in binary; it must not become 31.
    return math.ceil(value - 1e-9)
