"""CADENCE: all ranks end a window at the same time, then average their parameters."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from flodl import log
from flodl.distributed.averaging.skip_decision import SkipVerdict
from flodl.distributed.planning.guard import Advice, growth_rate
from flodl.distributed.planning.scheduler import (
    WindowPlan,
    WindowReport,
    close_window,
    digest,
    extend_window,
    open_window,
    stops_here,
)
from flodl.distributed.planning.spans import front
from flodl.distributed.policies.base import PolicyLoop
from flodl.errors import DistributedError, DivergedError, PlanMismatchError
from flodl.launch.settings import Backend
from flodl.monitor.ledger import Account

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flodl.distributed.averaging.average import Averaged, ParameterAverager
    from flodl.distributed.rank_worker import RankWorker
    from flodl.train.plan import TrainingPlan

MAX_SKIPS = 3
"""Skipped averages in a row after which training fails, so that a launcher can restart it."""


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


class WindowLoop(PolicyLoop):
    """The common part of the policies that average parameters."""

    def __init__(self, worker: RankWorker, averager: ParameterAverager) -> None:
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
        """Open the next window and begin the epochs that it reaches into."""
        worker = self._worker
        worker.schedule, plan = open_window(worker.schedule, worker.config)
        if plan is not None:
            worker.begin_window(plan)
            self._worker.mark("plan", window=plan.index, counts=list(plan.counts))
        return plan

    def _train(self, plan: WindowPlan, run: WindowRun) -> None:
        """Train this rank's lease, from the progress in ``run`` to the rank's end of the window."""
        worker, rank = self._worker, self._worker.group.rank
        lease = plan.lease_size(rank)
        _, spans = front(plan.leases[rank], run.done)
        run.elapsed_ms = 0.0
        left = parts = 0
        worker.pacer.begin()
        with closing(worker.batches(spans)) as batches:
            for number, rows, batch in batches:
                if left == 0:
                    left = parts = min(worker.plan.accumulate, lease - run.done)
                left -= 1
                position = worker.rate_limit(plan.rate_position(rank, run.done))
                ms = worker.train(number, rows, batch, position, parts=parts, closes=left == 0)
                run.took(ms, len(rows), counts=not plan.warm_up or run.done > 0)
                self._between_batches()
                if left > 0 or not stops_here(plan, rank, run.done, run.elapsed_ms, ms):
                    continue
                if not self._has_time(plan) or run.done >= lease:
                    break
        late = worker.pacer.catch_up()
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
            self._worker.repair_optimizer()
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
        for epoch in outcome.complete:
            worker.complete_epoch(epoch, averaged=averaged)


@final
class CadenceLoop(WindowLoop):
    """Repeats: train a window, wait for the others, average.

    Args:
        worker: Trains the batches.
        averager: Averages the worker's model.
        until_calibrated: Whether to return as soon as the speed of every rank is known.
    """

    def __init__(
        self, worker: RankWorker, averager: ParameterAverager, *, until_calibrated: bool = False
    ) -> None:
        super().__init__(worker, averager)
        settings, group = worker.plan.distributed, worker.group
        self._until_calibrated = until_calibrated
        self._round = 0
        self._done_with = -1
        """Index of the first window, once this rank has reported that its part is done."""
        self._verdict: SkipVerdict | None = None
        if settings.backend is Backend.CPU and group.world_size > 1:
            self._verdict = SkipVerdict(
                group.store, group.rank, group.world_size, settings.snapshot_timeout
            )

    @property
    def knows_enough(self) -> bool:
        """Whether this loop was to measure the speeds of the ranks and has done so."""
        worker = self._worker
        return self._until_calibrated and worker.schedule.elche.calibrated and worker.versions > 2

    def run_to_barrier(self) -> None:
        """Train window after window."""
        worker = self._worker
        while (plan := self._open()) is not None:
            run = WindowRun()
            self._train(plan, run)
            plan = self._wait_for_all(plan, run)
            averaged, sync_ms = self._average(run.samples)
            # The cost includes exchanging the reports: the previous window's time stands for it.
            row = self._row(run, averaged, sync_ms + self._exchange_ms)
            began = time.perf_counter()
            rows = worker.group.gather(row, prompt=True)
            self._exchange_ms = (time.perf_counter() - began) * 1000
            self._close(plan, rows, averaged=True)
            if worker.stops:
                return
            if self.knows_enough:
                return
            worker.keep_if_due()

    def _has_time(self, plan: WindowPlan) -> bool:
        """Whether slower ranks are still training their part of the first window.

        The speeds are unknown in this window, so a rank that is done early trains on instead of
        waiting.
        """
        if not plan.warm_up:
            return False
        group, key = self._worker.group, f"warm-up/{plan.index}"
        done = group.store.add(key, int(self._done_with != plan.index))
        self._done_with = plan.index
        return done < group.world_size

    def _wait_for_all(self, plan: WindowPlan, run: WindowRun) -> WindowPlan:
        """Train on while a rank is late; return the extended window.

        Raises:
            DistributedError: A rank was late too often, or this rank was asked to end meanwhile.
        """
        if self._verdict is None:
            return plan
        worker, skips = self._worker, 0
        while not self._verdict.decide(self._next_round()):
            skips += 1
            worker.aborts += 1
            self._worker.mark("skip", count=worker.aborts)
            if worker.stops.interrupt.requested:
                # A launcher that lost a rank ends the others first, then restarts all ranks.
                raise DistributedError(
                    f"rank {worker.group.rank} was asked to end, and another rank did not come to "
                    "the average; started again, the training continues from its last checkpoint"
                )
            if skips == MAX_SKIPS:
                raise DistributedError(
                    f"a rank did not come to {skips} averages in a row within "
                    f"{worker.plan.distributed.snapshot_timeout:g} s each; start the ranks again "
                    "(a launcher with restarts left does so by itself)"
                )
            log.warning(f"rank {worker.group.rank}: an average is skipped, a rank is late")
            worker.schedule, plan = extend_window(worker.schedule, plan, worker.config)
            worker.begin_window(plan)
            self._train(plan, run)
        return plan

    def _next_round(self) -> int:
        self._round += 1
        return self._round
