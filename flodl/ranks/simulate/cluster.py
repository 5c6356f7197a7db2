"""Simulated ranks that only count time; the real scheduler plans their work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from flodl.ranks.planning.elche import RankReport, communication
from flodl.ranks.planning.schedule import (
    ScheduleConfig,
    ScheduleState,
    Spans,
    WindowPlan,
    WindowReport,
    deal,
    front,
    numbers,
    size,
)
from flodl.ranks.planning.scheduler import (
    close_window,
    initial_schedule,
    open_window,
    pass_barrier,
    stops_here,
    take_step,
)
from flodl.ranks.settings import Policy

DEFAULT_BYTES = 46_758_048
"""Float32 parameters of a ResNet-18: 11,689,512 × 4 bytes."""
DEFAULT_BANDWIDTH = 1.25e9
"""Bytes per second of 10 Gbit/s Ethernet."""
DEFAULT_LATENCY_MS = 0.05
"""Milliseconds of one message between two hosts of a local network over TCP."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """A ring all-reduce between ranks with equal links that work at the same time.

    Each of ``W`` ranks sends ``W - 1`` parts of ``bytes / W`` to add them up. It then sends as
    many again to distribute the sums, one after the other. So an average takes
    ``2 (W-1)/W · bytes/bandwidth + 2 (W-1) · latency``
    (P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", 2009; the cost of a message follows R. Hockney's model, 1994).

    Measure bandwidth and latency on your own network: ``docs/benchmarks/ghost.md`` does so for
    Gloo on one host. The defaults are a ResNet-18 on 10 Gbit/s Ethernet.

    Raises:
        ValueError: A value is not finite or below 0, or the bandwidth is 0.
    """

    bytes: int = DEFAULT_BYTES
    """Size of the averaged tensors: parameters or gradients, and the floating buffers."""
    bandwidth: float = DEFAULT_BANDWIDTH
    """Bytes per second that a rank sends while it receives at the same rate."""
    latency_ms: float = DEFAULT_LATENCY_MS
    """Milliseconds until the first byte of a message arrives."""

    def __post_init__(self) -> None:
        if self.bytes < 0:
            raise ValueError(f"bytes={self.bytes!r}: it must be at least 0")
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise ValueError(
                f"bandwidth={self.bandwidth!r}: give bytes per second above 0, such as 1.25e9 "
                "for 10 Gbit/s"
            )
        if not (math.isfinite(self.latency_ms) and self.latency_ms >= 0):
            raise ValueError(f"latency_ms={self.latency_ms!r}: it must be a number of at least 0")

    def ms(self, ranks: int) -> float:
        """Return the milliseconds of one average over this number of ranks; 0 for one rank."""
        messages = 2 * (ranks - 1)
        return messages * (1000 * self.bytes / ranks / self.bandwidth + self.latency_ms)


@final
@dataclass(frozen=True, slots=True)
class Change:
    """A change of the speed of one rank at a given time."""

    at_ms: float
    rank: int
    ms: float
    """Milliseconds per batch from then on."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """The speeds of the ranks and the cost of one average.

    Raises:
        ValueError: A duration is not above 0 (``sync_ms``: is below 0), or a change names a rank
            that does not exist.
    """

    ms: tuple[float, ...]
    """Milliseconds per batch of each rank."""
    exchange: Exchange = field(default_factory=Exchange)
    """Model that computes the time of an average from the number of ranks."""
    sync_ms: float | None = None
    """Milliseconds of one average of exactly these ranks, once all have arrived, as measured or
    declared; replaces the value from ``exchange``."""
    changes: tuple[Change, ...] = ()
    """Changes of speed; they are sorted by time."""

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
        """The numbers of the ranks."""
        return range(len(self.ms))

    @property
    def average_ms(self) -> float:
        """Milliseconds of one average, of parameters or of gradients."""
        return self.exchange.ms(len(self.ms)) if self.sync_ms is None else self.sync_ms

    def pace(self, rank: int, at: float) -> float:
        """Return the milliseconds of a batch that a rank begins at time ``at``."""
        pace = self.ms[rank]
        for change in self.changes:
            if change.at_ms > at:
                break
            if change.rank == rank:
                pace = change.ms
        return pace

    def finished(self, rank: int, start: float, batches: int) -> float:
        """Return the time at which a rank is done with a number of batches."""
        if not self.changes:
            return start + batches * self.ms[rank]
        for _ in range(batches):
            start += self.pace(rank, start)
        return start

    def capacity(self, until: float) -> float:
        """Return how many batches all ranks train until a given time if no rank ever waits."""
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
    """One window of a simulated training."""

    start_ms: float
    """Time at which the first rank began the window."""
    end_ms: float
    """Time at which its average arrived; with overlap, the ranks train the next window by then."""
    trained: tuple[Spans, ...]
    """Batches of each rank; where a step shares samples by ratios, as if it shared batches."""
    planned_ms: float
    """Planned length of the window; 0 if nothing was known yet."""

    @property
    def counts(self) -> tuple[int, ...]:
        """How many batches each rank trained."""
        return tuple(sum(stop - start for start, stop in spans) for spans in self.trained)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """A whole training in virtual time."""

    ms: float
    """Time at which the last average arrived."""
    windows: tuple[GhostWindow, ...]
    comm_ms: float
    """Time that every rank spent on exchanges."""
    waits_ms: tuple[float, ...]
    """Time that each rank waited for others."""
    anchor: int | None
    """Batches of the slowest rank in a window, at the end; None if there are no windows."""

    @property
    def batches(self) -> int:
        """Batches trained by all ranks together."""
        return sum(sum(window.counts) for window in self.windows)


class Work:
    """What simulated ranks do. These do nothing, so that only time is counted.

    A subclass may train a real model per rank. It is called in the order of the clock: whatever a
    rank trains has every average that has reached it by then, and no other.
    """

    def train(self, rank: int, number: int) -> None:
        """Train batch ``number`` on a rank, and change its parameters."""

    def gradient(self, rank: int, taken: Spans) -> None:
        """Compute the gradient of a rank's part of a shared step.

        Args:
            rank: The rank.
            taken: All batches of the step. Rank ``r`` has the one at position ``r``, or its part
                of all samples if the ranks share by ratios.
        """

    def step(self, ms: float) -> None:
        """Average the gradients and change the parameters of all ranks, at time ``ms``."""

    def average(self, ms: float) -> Sequence[float]:  # noqa: ARG002
        """Average the parameters at time ``ms``; return each rank's distance from the average."""
        return ()

    def start(self) -> None:
        """Start to average the parameters as they are now, while the ranks train on."""

    def land(self, rank: int, ms: float) -> float:  # noqa: ARG002
        """Apply the average under way to a rank, at time ``ms``; return its distance from it."""
        return 0.0


def simulate(
    cluster: Cluster, config: ScheduleConfig, *, overlap: bool = False, work: Work | None = None
) -> History:
    """Simulate a training on a virtual clock.

    Args:
        cluster: The ranks.
        config: The settings of a real training; its policy decides how the ranks average.
        overlap: Whether to average CADENCE windows while the next one is trained, as ASYNC always
            does.
        work: What the ranks do in the order of the clock; None: they only count time.

    Raises:
        ValueError: The policy is AUTO, or ``config`` is for another number of ranks.
    """
    if config.world_size != len(cluster.ms):
        raise ValueError(
            f"the schedule is for {config.world_size} ranks and the cluster has {len(cluster.ms)}"
        )
    if config.policy is Policy.AUTO:
        raise ValueError("policy auto cannot be simulated itself: simulate those it chooses from")
    run = _Run(cluster, config, work or Work())
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
    """The work of one rank in one window."""

    batches: int
    wall_ms: float
    first_ms: float
    """Time of the first batch, part of ``wall_ms``."""
    end: float
    blocked_ms: float
    """Time waited for the average of the previous window."""

    def report(self, plan: WindowPlan, sync_ms: float, divergence: float) -> WindowReport:
        """Return the report that a real rank would have made."""
        left_out = 1 if plan.warm_up and self.batches else 0
        return WindowReport(
            wall_ms=self.wall_ms - left_out * self.first_ms,
            batches=self.batches,
            sync_ms=sync_ms,
            divergence=divergence,
            measured=self.batches - left_out,
        )


@final
@dataclass(frozen=True, slots=True)
class _Round:
    """An average in progress."""

    plan: WindowPlan
    stints: Sequence[_Stint]
    lands: float
    divergence: Sequence[float] = ()
    """Distance of each rank from the latest average that had arrived as this one began."""


@final
class _Run:
    """One simulated training: its clocks and its records."""

    def __init__(self, cluster: Cluster, config: ScheduleConfig, work: Work) -> None:
        self._cluster, self._config, self._work = cluster, config, work
        self._state: ScheduleState = initial_schedule(config)
        self._clocks = [0.0] * len(cluster.ms)
        self._windows: list[GhostWindow] = []
        self._comm = 0.0
        self._waits = [0.0] * len(cluster.ms)
        self._divergence = [0.0] * len(cluster.ms)

    def history(self) -> History:
        """Return the recorded training."""
        windowed = self._config.policy is not Policy.SYNC
        return History(
            ms=max(self._clocks),
            windows=tuple(self._windows),
            comm_ms=self._comm,
            waits_ms=tuple(self._waits),
            anchor=self._state.elche.anchor if windowed else None,
        )

    def in_steps(self) -> None:
        """Repeat: train one batch per rank, then average the gradients."""
        while True:
            self._state, taken = take_step(self._state, self._config)
            if not taken:
                if self._at_the_end():
                    return
                continue
            start, ends = self._clocks[0], list[float]()
            for rank, batches in enumerate(self._parts(size(taken))):
                if batches:
                    self._work.gradient(rank, taken)
                ends.append(start + batches * self._cluster.pace(rank, start))
            self._meet(ends)
            self._work.step(self._clocks[0])
            self._windows.append(
                GhostWindow(
                    start_ms=start,
                    end_ms=self._clocks[0],
                    trained=tuple(deal(taken, [1] * len(ends))),
                    planned_ms=0.0,
                )
            )

    def _parts(self, batches: int) -> list[float]:
        """Return how much each rank trains of a step: a batch, or with ratios a part of all."""
        ratios = self._config.partition_ratios
        if ratios is None:
            return [float(rank < batches) for rank in self._cluster.ranks]
        return [batches * ratio / sum(ratios) for ratio in ratios]

    def blocking(self) -> None:
        """Train windows; at the end of each, a rank waits for the others."""
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
            self._average()
            self._record(done, starts)
            self._close(done, halted, self._divergence)

    def overlapped(self) -> None:
        """Train each window while the previous one is averaged; one average at a time."""
        under_way: _Round | None = None
        while True:
            plan = self._open()
            if plan is not None:
                starts = list(self._clocks)
                lands = under_way.lands if under_way else None
                if under_way is not None:
                    self._work.start()
                stints = [self._stint(plan, rank, lands) for rank in self._cluster.ranks]
                self._clocks = [stint.end for stint in stints]
                self._block([stint.blocked_ms for stint in stints])
                if under_way is not None:
                    halted = [stint.blocked_ms for stint in under_way.stints]
                    self._close(under_way, halted, under_way.divergence)
                lands = max(self._clocks) + self._cluster.average_ms
                under_way = _Round(plan, stints, lands, tuple(self._divergence))
                self._record(under_way, starts)
            elif under_way is not None:
                halted = self._meet(self._clocks)
                self._average()
                self._close(under_way, halted, self._divergence)
                under_way = None
            elif self._at_the_end():
                return

    def _average(self) -> None:
        """Average what all ranks have trained, while they wait."""
        found = self._work.average(self._clocks[0])
        self._divergence = list(found) or self._divergence

    def _open(self) -> WindowPlan | None:
        self._state, plan = open_window(self._state, self._config)
        return plan

    def _close(self, done: _Round, halted: Sequence[float], divergence: Sequence[float]) -> None:
        told = zip(done.stints, halted, divergence, strict=True)
        reports = [stint.report(done.plan, sync_ms, far) for stint, sync_ms, far in told]
        self._state, _ = close_window(self._state, done.plan, reports, self._config)

    def _at_the_end(self) -> bool:
        """Return True if everything is trained; otherwise pass the barrier and return False."""
        if self._state.complete >= self._config.epochs:
            return True
        self._state = pass_barrier(self._state, self._config)
        return False

    def _stint(self, plan: WindowPlan, rank: int, lands: float | None) -> _Stint:
        """Train one rank's part; until the time ``lands`` it trains at most the overshoot."""
        at, own = self._clocks[rank], numbers(plan.leases[rank])
        done, latest, first, wall, blocked = 0, 0.0, 0.0, 0.0, 0.0
        while not stops_here(plan, rank, done, wall, latest):
            if lands is not None and (done >= self._state.overshoot or at >= lands):
                blocked, at = blocked + max(0.0, lands - at), max(at, lands)
                self._land(rank, at)
                lands = None
            self._work.train(rank, own[done])
            latest = self._cluster.pace(rank, at)
            first = first or latest
            at, wall, done = at + latest, wall + latest, done + 1
        if lands is not None:
            blocked, at = blocked + max(0.0, lands - at), max(at, lands)
            self._land(rank, at)
        return _Stint(done, wall, first, at, blocked)

    def _land(self, rank: int, at: float) -> None:
        """Apply the average under way on one rank."""
        self._divergence[rank] = self._work.land(rank, at)

    def _meet(self, ends: Sequence[float]) -> list[float]:
        """Make the ranks wait for the last one and average; return how long each was blocked."""
        lands = max(ends) + self._cluster.average_ms
        halted = [lands - end for end in ends]
        self._block(halted)
        self._clocks = [lands] * len(ends)
        return halted

    def _block(self, halted: Sequence[float]) -> None:
        """Record the time in which ranks did not train, as exchange or as waiting for others."""
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
