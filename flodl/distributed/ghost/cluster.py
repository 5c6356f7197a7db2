"""Ranks that only count time, driven by the real scheduler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from flodl.distributed.config import Policy
from flodl.distributed.ghost.exchange import Exchange
from flodl.distributed.planning.elche import RankReport, communication
from flodl.distributed.planning.scheduler import (
    ScheduleConfig,
    ScheduleState,
    WindowPlan,
    WindowReport,
    close_window,
    initial_schedule,
    open_window,
    pass_barrier,
    stops_here,
    take_step,
)
from flodl.distributed.planning.spans import Spans, front


@final
@dataclass(frozen=True, slots=True)
class Change:
    """From a moment on, a rank has another speed."""

    at_ms: float
    rank: int
    ms: float
    """Milliseconds per batch from then on."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """How fast the ranks are and what it costs to average once.

    Raises:
        ValueError: A duration is not a number above 0 (``sync_ms``: not below), or a change names
            a rank that does not exist.
    """

    ms: tuple[float, ...]
    """Milliseconds per batch of each rank."""
    exchange: Exchange = field(default_factory=Exchange)
    """What decides how long an average takes, by the number of ranks."""
    sync_ms: float | None = None
    """Milliseconds of one average of exactly these ranks, as measured or declared, once all have
    arrived; replaces what follows from ``exchange``."""
    changes: tuple[Change, ...] = ()
    """In the order of time."""

    def __post_init__(self) -> None:
        paces = (*self.ms, *(change.ms for change in self.changes))
        if not self.ms or not all(math.isfinite(pace) and pace > 0 for pace in paces):
            raise ValueError(
                f"ms={self.ms!r}: give each rank its milliseconds per batch, above 0 "
                "(those of changes as well)"
            )
        if self.sync_ms is not None and not (math.isfinite(self.sync_ms) and self.sync_ms >= 0):
            raise ValueError(f"sync_ms={self.sync_ms!r}: it must be a number of at least 0")
        if wrong := [change.rank for change in self.changes if change.rank not in self.ranks]:
            raise ValueError(
                f"a change names rank {wrong[0]}; the ranks are 0 to {len(self.ms) - 1}"
            )
        ordered = sorted(self.changes, key=lambda change: change.at_ms)
        object.__setattr__(self, "changes", tuple(ordered))

    @property
    def ranks(self) -> range:
        """Their numbers."""
        return range(len(self.ms))

    @property
    def average_ms(self) -> float:
        """Milliseconds of one average, of parameters or of gradients."""
        return self.exchange.ms(len(self.ms)) if self.sync_ms is None else self.sync_ms

    def pace(self, rank: int, at: float) -> float:
        """Return how many milliseconds a batch takes that a rank begins at this moment."""
        pace = self.ms[rank]
        for change in self.changes:
            if change.at_ms > at:
                break
            if change.rank == rank:
                pace = change.ms
        return pace

    def finished(self, rank: int, start: float, batches: int) -> float:
        """Return when a rank is done with some batches."""
        if not self.changes:
            return start + batches * self.ms[rank]
        for _ in range(batches):
            start += self.pace(rank, start)
        return start

    def capacity(self, until: float) -> float:
        """Return how many batches all ranks train until a moment if none ever waits."""
        total = 0.0
        for rank in self.ranks:
            pace, since = self.ms[rank], 0.0
            for change in self.changes:
                if change.rank == rank and change.at_ms < until:
                    total += (change.at_ms - since) / pace
                    pace, since = change.ms, change.at_ms
            total += (until - since) / pace
        return total


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class GhostWindow:
    """What happened between two exchanges."""

    start_ms: float
    """When the first rank began it."""
    end_ms: float
    """When its average was there; with an overlap, ranks are at the next window by then."""
    trained: tuple[Spans, ...]
    """Batches of each rank."""
    planned_ms: float
    """How long it was meant to take; 0 where nothing was known yet."""

    @property
    def counts(self) -> tuple[int, ...]:
        """How many batches each rank trained."""
        return tuple(sum(stop - start for start, stop in spans) for spans in self.trained)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """A whole training in virtual time."""

    ms: float
    """When the last average was there."""
    windows: tuple[GhostWindow, ...]
    comm_ms: float
    """Time that every rank spent on exchanges."""
    waits_ms: tuple[float, ...]
    """Time that each rank waited for others."""
    anchor: int | None
    """Batches of the slowest rank in the last window; None where there are no windows."""

    @property
    def batches(self) -> int:
        """Batches trained by all ranks together."""
        return sum(sum(window.counts) for window in self.windows)


def simulate(cluster: Cluster, config: ScheduleConfig, *, overlap: bool = False) -> History:
    """Run a training on the virtual clock.

    Args:
        cluster: The ranks.
        config: What a real training would be planned with; its policy decides how ranks agree.
        overlap: Average CADENCE windows while the next one is trained, as ASYNC always does.

    Raises:
        ValueError: The policy is AUTO, or ``config`` is for another number of ranks.
    """
    if config.world_size != len(cluster.ms):
        raise ValueError(
            f"the schedule is for {config.world_size} ranks and the cluster has {len(cluster.ms)}"
        )
    if config.policy is Policy.AUTO:
        raise ValueError("policy auto cannot be simulated itself: simulate those it chooses from")
    run = _Run(cluster, config)
    if config.policy is Policy.SYNC:
        run.in_steps()
    elif overlap or config.policy is Policy.ASYNC:
        run.overlapped()
    else:
        run.blocking()
    return run.history()


@final
@dataclass(frozen=True, slots=True)
class _Stint:
    """One rank in one window."""

    batches: int
    wall_ms: float
    first_ms: float
    """Of that, the first batch."""
    end: float
    blocked_ms: float
    """Halted for the average of the window before."""

    def report(self, plan: WindowPlan, sync_ms: float) -> WindowReport:
        """Tell what the rank would have measured."""
        left_out = 1 if plan.warm_up and self.batches else 0
        return WindowReport(
            wall_ms=self.wall_ms - left_out * self.first_ms,
            batches=self.batches,
            sync_ms=sync_ms,
            measured=self.batches - left_out,
        )


@final
@dataclass(frozen=True, slots=True)
class _Round:
    """An average that is under way."""

    plan: WindowPlan
    stints: Sequence[_Stint]
    lands: float


@final
class _Run:
    """The clock and the books of one simulated training."""

    def __init__(self, cluster: Cluster, config: ScheduleConfig) -> None:
        self._cluster, self._config = cluster, config
        self._state: ScheduleState = initial_schedule(config)
        self._clocks = [0.0] * len(cluster.ms)
        self._windows: list[GhostWindow] = []
        self._comm = 0.0
        self._waits = [0.0] * len(cluster.ms)

    def history(self) -> History:
        """Return what is in the books."""
        windowed = self._config.policy is not Policy.SYNC
        return History(
            ms=max(self._clocks),
            windows=tuple(self._windows),
            comm_ms=self._comm,
            waits_ms=tuple(self._waits),
            anchor=self._state.elche.anchor if windowed else None,
        )

    def in_steps(self) -> None:
        """Train a batch per rank and average the gradients, over and over."""
        while True:
            self._state, taken = take_step(self._state, self._config)
            if not taken:
                if self._at_the_end():
                    return
                continue
            start, shares = self._clocks[0], list[Spans]()
            for _ in self._cluster.ranks:
                mine, taken = front(taken, 1)
                shares.append(mine)
            ends = [
                self._cluster.finished(rank, start, len(mine)) for rank, mine in enumerate(shares)
            ]
            self._meet(ends)
            self._windows.append(
                GhostWindow(
                    start_ms=start,
                    end_ms=self._clocks[0],
                    trained=tuple(shares),
                    planned_ms=0.0,
                )
            )

    def blocking(self) -> None:
        """Train windows; whoever arrives at the end of one waits for the others."""
        while True:
            plan = self._open()
            if plan is None:
                if self._at_the_end():
                    return
                continue
            starts = list(self._clocks)
            stints = [self._stint(plan, rank, None) for rank in self._cluster.ranks]
            halted = self._meet([stint.end for stint in stints])
            done = _Round(plan, stints, self._clocks[0])
            self._record(done, starts)
            self._close(done, halted)

    def overlapped(self) -> None:
        """Train windows, each while the one before is averaged; one average at a time."""
        under_way: _Round | None = None
        while True:
            plan = self._open()
            if plan is not None:
                starts = list(self._clocks)
                lands = under_way.lands if under_way else None
                stints = [self._stint(plan, rank, lands) for rank in self._cluster.ranks]
                self._clocks = [stint.end for stint in stints]
                self._block([stint.blocked_ms for stint in stints])
                if under_way is not None:
                    self._close(under_way, [stint.blocked_ms for stint in under_way.stints])
                lands = max(self._clocks) + self._cluster.average_ms
                under_way = _Round(plan, stints, lands)
                self._record(under_way, starts)
            elif under_way is not None:
                self._close(under_way, self._meet(self._clocks))
                under_way = None
            elif self._at_the_end():
                return

    def _open(self) -> WindowPlan | None:
        self._state, plan = open_window(self._state, self._config)
        return plan

    def _close(self, done: _Round, halted: Sequence[float]) -> None:
        pairs = zip(done.stints, halted, strict=True)
        reports = [stint.report(done.plan, sync_ms) for stint, sync_ms in pairs]
        self._state, _ = close_window(self._state, done.plan, reports, self._config)

    def _at_the_end(self) -> bool:
        """Whether everything is trained; otherwise the barrier is behind us afterwards."""
        if self._state.complete >= self._config.epochs:
            return True
        self._state = pass_barrier(self._state, self._config)
        return False

    def _stint(self, plan: WindowPlan, rank: int, lands: float | None) -> _Stint:
        """Let a rank train its part; until ``lands`` it may do no more than the overshoot."""
        at = self._clocks[rank]
        until = at if lands is None else lands
        done, latest, first, wall, blocked = 0, 0.0, 0.0, 0.0, 0.0
        while not stops_here(plan, rank, done, wall, latest):
            if at < until and done >= self._state.overshoot:
                blocked, at = blocked + until - at, until
            latest = self._cluster.pace(rank, at)
            first = first or latest
            at, wall, done = at + latest, wall + latest, done + 1
        if at < until:
            blocked, at = blocked + until - at, until
        return _Stint(done, wall, first, at, blocked)

    def _meet(self, ends: Sequence[float]) -> list[float]:
        """Let the ranks wait for the last one and average; return how long each was halted."""
        lands = max(ends) + self._cluster.average_ms
        halted = [lands - end for end in ends]
        self._block(halted)
        self._clocks = [lands] * len(ends)
        return halted

    def _block(self, halted: Sequence[float]) -> None:
        """Book the time in which ranks did not train, as exchange or as waiting for others."""
        comm, waits = communication([RankReport(0.0, 0, blocked) for blocked in halted])
        self._comm += comm
        self._waits = [sum(pair) for pair in zip(self._waits, waits, strict=True)]

    def _record(self, done: _Round, starts: Sequence[float]) -> None:
        pairs = zip(done.plan.leases, done.stints, strict=True)
        self._windows.append(
            GhostWindow(
                start_ms=min(starts),
                end_ms=done.lands,
                trained=tuple(front(lease, stint.batches)[0] for lease, stint in pairs),
                planned_ms=done.plan.window_ms,
            )
        )
