"""What the policies that average parameters share: train a window, average, report, close."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flodl import log
from flodl.errors import DivergedError, PlanMismatchError
from flodl.monitor.ledger import Account
from flodl.ranks.planning.guard import Advice, growth_rate
from flodl.ranks.planning.schedule import WindowPlan, WindowReport
from flodl.ranks.planning.scheduler import (
    close_window,
    digest,
    open_window,
    stops_here,
)
from flodl.ranks.planning.spans import front, numbers
from flodl.ranks.settings import Backend
from flodl.train.observers.guards.guard import Setback
from flodl.train.policies.shared import SharedLoop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flodl.ranks.averaging.average import Averaged, ParameterAverager
    from flodl.train.loop import Loop
    from flodl.train.observers.guards.first_non_finite import FirstNonFinite
    from flodl.train.plan import TrainingPlan
    from flodl.train.policies.moment import Moment


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
class WindowRun:
    """The progress of a rank in a window."""

    done: int = 0
    samples: int = 0
    wall_ms: float = 0.0
    measured: int = 0
    elapsed_ms: float = 0.0
    """Time since the window, or its extension, began."""

    def took(self, ms: float, samples: int, *, counts: bool) -> None:
        """Add a batch; ``counts`` is False for one that is slow for a temporary reason."""
        self.done += 1
        self.samples += samples
        self.elapsed_ms += ms
        if counts:
            self.wall_ms += ms
            self.measured += 1


class WindowLoop(SharedLoop):
    """The common part of the policies that average parameters."""

    def __init__(self, worker: Loop, averager: ParameterAverager) -> None:
        super().__init__(worker)
        self._averager = averager
        settings = worker.plan.distributed
        self._pad_ms = settings.simulate_sync_ms
        self._words = (
            ("cpu_avg_start", "cpu_avg_end")
            if settings.backend is Backend.CPU
            else ("sync_start", "sync_end")
        )
        self._exchange_ms = 0.0
        self._declared_ms = declared_ms(worker.plan, worker.group.rank)

    def _open(self) -> WindowPlan | None:
        """Open the next window and begin the epochs that it reaches into.

        Returns:
            The window; None before a barrier. With guards also None before an epoch begins beside
            an open window, because a training never goes back past the start of an epoch.
        """
        worker = self._worker
        alone = not worker.schedule.leased
        if alone and self.left_out is not None:
            self._pass_left_out()
            self._complete_epochs(averaged=True)
        opened, plan = open_window(worker.schedule, worker.config)
        if plan is not None:
            begins = _end(plan) > self._begun * worker.config.batches_per_epoch
            if self.guard is not None and begins and not alone:
                return None
            self._begin(plan)
            if begins:
                self.forget()
            if self.guard is not None and alone:
                self.guard.ready()
            worker.mark("plan", window=plan.index, counts=list(plan.counts))
        worker.schedule = opened
        return plan

    def _begin(self, plan: WindowPlan) -> None:
        """Begin the epochs that a window reaches into, on this rank."""
        self._worker.rate.follow(self._worker.schedule.elche.counts)
        self._begin_epochs(_end(plan))

    def _train(self, plan: WindowPlan, run: WindowRun) -> None:
        """Train this rank's lease, from the progress in ``run`` to the rank's end of the window."""
        worker, rank = self._worker, self._worker.group.rank
        lease = plan.lease_size(rank)
        _, spans = front(plan.leases[rank], run.done)
        run.elapsed_ms = 0.0
        left = parts = 0
        worker.timer.begin()
        with closing(self.data.batches(spans)) as batches:
            for number, rows, batch in batches:
                if left == 0:
                    left = parts = min(worker.plan.accumulate, lease - run.done)
                left -= 1
                position = self._rate_limit(plan.rate_position(rank, run.done))
                ms = self._train_batch(number, rows, batch, position, parts=parts, closes=left == 0)
                run.took(ms, len(rows), counts=not plan.warm_up or run.done > 0)
                self._between_batches()
                if left > 0 or not stops_here(plan, rank, run.done, run.elapsed_ms, ms):
                    continue
                if not self._has_time(plan) or run.done >= lease:
                    break
        late = worker.timer.catch_up()
        run.wall_ms += late

    def _has_time(self, plan: WindowPlan) -> bool:  # noqa: ARG002 - for subclasses that wait
        """Whether this rank may train on after its part of a window is done."""
        return False

    def _between_batches(self) -> None:
        """Apply an average that has arrived in the meantime."""

    def _average(self, samples: int) -> tuple[Averaged, float]:
        """Average and wait; return the result and the milliseconds it took."""
        worker = self._worker
        self._worker.mark(self._words[0])
        began = time.perf_counter()
        try:
            averaged = self._averager.average(samples)
        except DivergedError as error:
            raise self._located(error) from None
        if self._pad_ms:
            time.sleep(self._pad_ms / 1000)
        ms = (time.perf_counter() - began) * 1000
        self._worker.mark(self._words[1], ms=ms)
        worker.versions += 1
        worker.book(Account.SYNC)
        self._judge(averaged)
        return averaged, ms

    def _judge(self, averaged: Averaged) -> None:
        if not averaged.finite:
            rank = self._worker.group.rank
            self._repair_optimizer()
            self._worker.mark("guard", rank=rank, what="not finite")
            log.warning(
                f"rank {rank}: its parameters are not finite; it continues with the average of the "
                "others"
            )

    def _located(self, error: DivergedError) -> DivergedError:
        epoch = self._worker.schedule.complete
        return DivergedError(
            f"no rank has finite parameters in epoch {epoch} (counted from 0)",
            epoch=epoch,
            step=error.step,
        )

    def _row(self, run: WindowRun, averaged: Averaged | None, sync_ms: float) -> list[float]:
        """Return this rank's report about a window to the others."""
        worker = self._worker
        wall_ms = run.wall_ms
        if self._declared_ms is not None:
            wall_ms, sync_ms = run.measured * self._declared_ms, self._pad_ms
        return [
            wall_ms,
            float(run.done),
            float(run.measured),
            sync_ms,
            averaged.divergence if averaged is not None and averaged.finite else 0.0,
            digest(worker.schedule),
            *worker.stops.wishes(),
        ]

    def _close(self, plan: WindowPlan, rows: Sequence[Sequence[float]], *, averaged: bool) -> None:
        """Close a window with the reports of all ranks; the result is the same on every rank."""
        worker, rank = self._worker, self._worker.group.rank
        for other, row in enumerate(rows):
            if row[5] != rows[0][5]:
                raise PlanMismatchError(
                    f"rank {other} has planned window {plan.index} differently from rank 0; every "
                    "rank has to run the same program with the same versions of it"
                )
        reports = [
            WindowReport(
                wall_ms=row[0],
                batches=int(row[1]),
                measured=int(row[2]),
                sync_ms=row[3],
                divergence=row[4],
            )
            for row in rows
        ]
        worker.schedule, outcome = close_window(worker.schedule, plan, reports, worker.config)
        worker.spent(outcome.comm_ms, outcome.waits_ms[rank])
        rate = growth_rate(worker.schedule.guard, max(plan.counts))
        if rate is not None:
            log.debug("window {}: the ranks drift apart by {:+.3f} per batch", plan.index, rate)
        before, after = outcome.anchor
        if before != after:
            self._worker.mark("anchor", from_=before, to=after)
        if outcome.advice is not Advice.STABLE:
            self._worker.mark("guard", rank=rank, what=outcome.advice.value)
        self._worker.mark("wait", ms=outcome.waits_ms[rank])
        worker.stops.heed([max(wish) for wish in zip(*(row[6:] for row in rows), strict=True)])
        self._pass_left_out()
        self._complete_epochs(averaged=averaged)

    # --- Going back ----------------------------------------------------------------------------

    def _look(self) -> None:
        """Judge what all ranks have trained, before an average mixes it."""
        if self.guard is not None:
            self.guard.look(certain=True, keeps=False)

    def _begin_again(self, problem: Setback | DivergedError) -> None:
        """Go back to the start of a window.

        Raises:
            DivergedError: There is no guard, or there were too many attempts; on all ranks.
        """
        guard, setback = self.guard, problem
        if guard is None:
            raise problem
        if isinstance(setback, DivergedError):
            place = divmod(self._latest, self._worker.config.batches_per_epoch)
            setback = guard.cause(setback, *place, before=False)
        self._go_back(guard, setback)

    def return_to(self, moment: Moment) -> None:
        """Go back to a moment; model and optimizer are there already."""
        super().return_to(moment)
        self._averager.begin_again()

    def train_again(self, setback: Setback, look: FirstNonFinite) -> str:
        """Train the windows up to the batch of a setback; return where it ended."""
        worker, found = self._worker, ""
        until = setback.epoch * worker.config.batches_per_epoch + setback.batch
        with self._plainly(), suppress(DivergedError):
            while not found and (plan := self._open()) is not None:
                run = WindowRun()
                self._train(replace(plan, timed=False), run)
                if any(until in numbers(lease) for lease in plan.leases):
                    break
                averaged, sync_ms = self._average(run.samples)
                rows = worker.group.gather(self._row(run, averaged, sync_ms), prompt=True)
                self._close(plan, rows, averaged=True)
                found = "".join(worker.group.gather_objects(look.found))
        return f"on rank {worker.group.rank}"


def _end(plan: WindowPlan) -> int:
    """Return the number after the last batch of a window."""
    return max(stop for lease in plan.leases for _, stop in lease)
