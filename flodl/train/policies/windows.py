"""What the feeds that average weights share: windows, their reports, and the average."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from flodl import log
from flodl.errors import DivergedError, PlanMismatchError
from flodl.ranks.averaging.average import ParameterAverager
from flodl.ranks.planning.schedule import (
    Advice,
    WindowPlan,
    WindowReport,
    front,
    growth_rate,
    numbers,
)
from flodl.ranks.planning.scheduler import (
    close_window,
    digest,
    open_window,
    stops_here,
)
from flodl.ranks.settings import Backend
from flodl.train.policies.feed import Exchanged, FeedParts, FeedWindow, Part
from flodl.train.policies.sync import SharedFeed

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from flodl.ranks.averaging.average import Averaged
    from flodl.ranks.planning.schedule import ScheduleState
    from flodl.train.epoch_metrics import EpochLogs
    from flodl.train.settings import TrainingPlan


def declared_ms(plan: TrainingPlan, rank: int) -> float | None:
    """Return the declared duration of a batch in a deterministic training, which ignores clocks.

    Returns:
        Milliseconds, or a relative time; None if measured times count.
    """
    settings = plan.distributed
    if not plan.deterministic:
        return None
    if settings.simulate_ms is not None:
        return settings.simulate_ms[rank]
    return 1.0 / settings.speeds[rank] if settings.speeds is not None else 1.0


@dataclass(slots=True)
class LeaseWindow(FeedWindow):
    """The batches that each rank may train until the next average, and this rank's progress.

    Attributes:
        plan: The window, the same on all ranks.
        after: The schedule once it is open.
        samples: Samples that this rank has trained.
        elapsed_ms: Time since the window, or its extension, began.
    """

    plan: WindowPlan
    after: ScheduleState
    done: int = 0
    samples: int = 0
    wall_ms: float = 0.0
    measured: int = 0
    elapsed_ms: float = 0.0

    def took(self, ms: float, samples: int, *, counts: bool) -> None:
        """Add a batch; ``counts`` is False for one that is slow for a temporary reason."""
        self.done += 1
        self.samples += samples
        self.elapsed_ms += ms
        if counts:
            self.wall_ms += ms
            self.measured += 1


def report_in(row: Sequence[float]) -> WindowReport:
    """Return the report that a rank has told in a row of numbers."""
    wall_ms, batches, measured, sync_ms, divergence = row[:5]
    return WindowReport(
        wall_ms=wall_ms,
        batches=int(batches),
        measured=int(measured),
        sync_ms=sync_ms,
        divergence=divergence,
    )


class WindowFeed(SharedFeed[LeaseWindow]):
    """The common part of the feeds that average weights.

    Args:
        given: What every feed is made of, with a schedule.
    """

    mixes = True
    measured = True

    def __init__(self, given: FeedParts) -> None:
        super().__init__(given)
        parts, settings = given.parts, given.plan.distributed
        self._settings, self._pad_ms = settings, settings.simulate_sync_ms
        self._optimizer, self._marks = parts.optimizer, given.marks
        outer = settings.outer_optimizer
        if outer is not None and given.found.outer:
            outer.load_state_dict(given.found.outer)
        self._averager = ParameterAverager(
            parts.model,
            given.group,
            settings.backend,
            optimizer=parts.optimizer if settings.average_optimizer_state else None,
            outer=outer,
            format=settings.exchange,
        )
        self.wire = self._averager.wire
        self.wire.load_state(given.found.counts.exchange)
        self._words = (
            ("cpu_avg_start", "cpu_avg_end")
            if settings.backend is Backend.CPU
            else ("sync_start", "sync_end")
        )
        self._declared_ms = declared_ms(given.plan, given.group.rank)

    def counts(self) -> tuple[int, tuple[int, ...]]:
        """Return the batches of the slowest rank between two averages, and those of each rank."""
        return self.schedule.elche.anchor, self.schedule.elche.counts

    def steps(self, own: int) -> int:  # noqa: ARG002 - the ranks take different numbers of steps
        """Return the mean of the optimizer steps of all ranks."""
        return self.schedule.position // (self._group.world_size * self._accumulate)

    # --- Windows -------------------------------------------------------------------------------

    @property
    def alone(self) -> bool:
        """Whether no window is open."""
        return not self.schedule.leased

    def open(self) -> LeaseWindow | None:
        """Return the next window; None before a barrier."""
        opened, plan = open_window(self.schedule, self.config)
        if plan is None:
            self.schedule = opened
            return None
        return LeaseWindow(self._last_epoch(plan), plan.start, plan, opened)

    def _last_epoch(self, plan: WindowPlan) -> int:
        last = max(stop for lease in plan.leases for _, stop in lease)
        return (last - 1) // self.config.batches_per_epoch

    def enter(self, window: LeaseWindow) -> None:
        """Begin a window."""
        plan = window.plan
        self._marks("plan", window=plan.index, counts=list(plan.counts))
        self.schedule = window.after

    def parts(self, window: LeaseWindow) -> Generator[Part]:
        """Load this rank's lease from its progress on."""
        plan, rank, accumulate = window.plan, self.rank, self._accumulate
        lease = plan.lease_size(rank)
        _, spans = front(plan.leases[rank], window.done)
        window.elapsed_ms = 0.0
        left = parts = 0
        for number, rows, batch in self._data.batches(spans):
            if left == 0:
                left = parts = min(accumulate, lease - window.done)
            left -= 1
            position = self._rate_limit(plan.rate_position(rank, window.done))
            self._expect(number, number)
            yield Part(number, rows, batch, position, parts=parts, closes=left == 0)

    def ends(self, window: LeaseWindow, part: Part, ms: float) -> bool:
        """Whether this rank goes to the average after a batch that took so many milliseconds."""
        plan, rank = window.plan, self.rank
        window.took(ms, len(part.rows), counts=not plan.warm_up or window.done > 0)
        if not part.closes or not stops_here(plan, rank, window.done, window.elapsed_ms, ms):
            return False
        return window.done >= plan.lease_size(rank) or not self._has_time(plan)

    def ended(self, window: LeaseWindow, ms: float) -> None:
        """Learn that this rank has ended a window, and waited so many milliseconds for a device."""
        window.wall_ms += ms

    def _has_time(self, plan: WindowPlan) -> bool:  # noqa: ARG002 - for subclasses that wait
        """Whether this rank may train on after its part of a window is done."""
        return False

    # --- The average ---------------------------------------------------------------------------

    def _average(self, samples: int) -> tuple[Averaged, float]:
        """Average and wait; return the result and the milliseconds it took."""
        self._marks(self._words[0])
        began = time.perf_counter()
        try:
            averaged = self._averager.average(samples)
        except DivergedError as error:
            raise self._located(error) from None
        if self._pad_ms:
            time.sleep(self._pad_ms / 1000)
        ms = (time.perf_counter() - began) * 1000
        self._marks(self._words[1], ms=ms)
        self._count(averaged)
        return averaged, ms

    @torch.no_grad()
    def _count(self, averaged: Averaged) -> None:
        """Count an average; after parameters that are not finite repair the optimizer's state."""
        self.averages += 1
        if averaged.finite:
            return
        rank = self._group.rank
        for kept in self._optimizer.state.values():
            for value in kept.values():
                if isinstance(value, torch.Tensor) and not value.isfinite().all():
                    value.zero_()
        self._marks("guard", rank=rank, what="not finite")
        log.warning(
            f"rank {rank}: its parameters are not finite; it continues with the average of the "
            "others"
        )

    def _located(self, error: DivergedError) -> DivergedError:
        epoch = self.schedule.complete
        return DivergedError(
            f"no rank has finite parameters in epoch {epoch} (counted from 0)",
            epoch=epoch,
            step=error.step,
        )

    def _row(
        self,
        window: LeaseWindow,
        averaged: Averaged | None,
        sync_ms: float,
        wishes: Sequence[float],
    ) -> list[float]:
        """Return this rank's report about a window to the others."""
        wall_ms = window.wall_ms
        if self._declared_ms is not None:
            wall_ms, sync_ms = window.measured * self._declared_ms, self._pad_ms
        return [
            wall_ms,
            float(window.done),
            float(window.measured),
            sync_ms,
            averaged.divergence if averaged is not None and averaged.finite else 0.0,
            digest(self.schedule),
            *wishes,
        ]

    def _close(
        self, plan: WindowPlan, rows: Sequence[Sequence[float]], *, averaged: bool
    ) -> Exchanged:
        """Close a window with the reports of all ranks; the result is the same on every rank."""
        for other, row in enumerate(rows):
            if row[5] != rows[0][5]:
                raise PlanMismatchError(
                    f"rank {other} has planned window {plan.index} differently from rank 0; every "
                    "rank has to run the same program with the same versions of it"
                )
        reports, wishes = list(map(report_in, rows)), [row[6:] for row in rows]
        return self._settled(plan, reports, wishes, self.rank, averaged=averaged)

    def _settled(
        self,
        plan: WindowPlan,
        reports: Sequence[WindowReport],
        wishes: Sequence[Sequence[float]],
        rank: int | None,
        *,
        averaged: bool,
    ) -> Exchanged:
        """Close a window; ``rank`` is None on a rank that has joined at its end."""
        self.schedule, outcome = close_window(self.schedule, plan, reports, self.config)
        rate = growth_rate(self.schedule.guard, max(plan.counts))
        if rate is not None:
            log.debug("window {}: the ranks drift apart by {:+.3f} per batch", plan.index, rate)
        before, after = outcome.anchor
        if before != after:
            self._marks("anchor", from_=before, to=after)
        if outcome.advice is not Advice.STABLE:
            self._marks("guard", rank=rank, what=outcome.advice.value)
        waited = 0.0 if rank is None else outcome.waits_ms[rank]
        self._marks("wait", ms=waited)
        combined = [max(wish) for wish in zip(*wishes, strict=True)]
        return Exchanged(averaged, outcome.comm_ms, waited, combined)

    # --- Going back ----------------------------------------------------------------------------

    def failed_at(
        self,
        window: LeaseWindow,  # noqa: ARG002
        problem: DivergedError,  # noqa: ARG002
        logs: EpochLogs,  # noqa: ARG002
    ) -> tuple[tuple[int, int], bool]:
        """Return the batch that this rank has trained last."""
        return divmod(self._latest, self.config.batches_per_epoch), False

    def return_to(self, state: Any) -> None:
        """Go back to the result of :meth:`state`."""
        super().return_to(state)
        self._averager.begin_again()

    def holds(self, window: LeaseWindow, epoch: int, batch: int) -> bool:
        """Whether a batch is in a window."""
        number = epoch * self.config.batches_per_epoch + batch
        return any(number in numbers(lease) for lease in window.plan.leases)

    def untimed(self, window: LeaseWindow) -> None:
        """Let a window end after its batches, whatever they take."""
        window.plan = replace(window.plan, timed=False)
