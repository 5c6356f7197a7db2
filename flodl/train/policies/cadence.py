"""CADENCE: all ranks end a window at the same time, then average their parameters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from flodl import log
from flodl.errors import DistributedError, DivergedError
from flodl.ranks.averaging.skip_decision import SkipDecision
from flodl.ranks.planning.schedule import WindowPlan
from flodl.ranks.planning.scheduler import extend_window
from flodl.ranks.settings import Backend
from flodl.train.observers.guards.guard import Setback
from flodl.train.policies.window_loop import WindowLoop, WindowRun

if TYPE_CHECKING:
    from flodl.ranks.averaging.average import ParameterAverager
    from flodl.train.loop import Loop

MAX_SKIPS = 3
"""Skipped averages in a row after which training fails, so that a launcher can restart it."""


@final
class CadenceLoop(WindowLoop):
    """Repeats: train a window, wait for the others, average.

    Args:
        worker: Trains the batches.
        averager: Averages the worker's model.
    """

    def __init__(self, worker: Loop, averager: ParameterAverager) -> None:
        super().__init__(worker, averager)
        settings, group = worker.plan.distributed, worker.group
        self._round = 0
        self._done_with = -1
        """Index of the first window, once this rank has reported that its part is done."""
        self._skip_decision: SkipDecision | None = None
        if settings.backend is Backend.CPU and group.world_size > 1:
            self._skip_decision = SkipDecision(
                group.store, group.rank, group.world_size, settings.snapshot_timeout
            )

    def run_to_barrier(self) -> None:
        """Train window after window."""
        worker = self._worker
        while (plan := self._open()) is not None:
            run = WindowRun()
            try:
                self._train(plan, run)
                plan = self._wait_for_all(plan, run)
                self._look()
                averaged, sync_ms = self._average(run.samples)
            except (Setback, DivergedError) as problem:
                self._begin_again(problem)
                continue
            # The cost includes exchanging the reports: the previous window's time stands for it.
            row = self._row(run, averaged, sync_ms + self._exchange_ms)
            began = time.perf_counter()
            rows = worker.group.gather(row, prompt=True)
            self._exchange_ms = (time.perf_counter() - began) * 1000
            self._close(plan, rows, averaged=True)
            worker.act()
            if worker.stops:
                return
            self._keep_if_due()

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
        if self._skip_decision is None:
            return plan
        worker, skips = self._worker, 0
        while not self._skip_decision.decide(self._next_round()):
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
            self._begin(plan)
            self._train(plan, run)
        return plan

    def _next_round(self) -> int:
        self._round += 1
        return self._round
