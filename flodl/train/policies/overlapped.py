"""ASYNC: the average of a window arrives while the ranks train the next window.

After a window each rank takes a snapshot s of its parameters, starts to average the snapshots, and
trains on. When the average arrives, p ← p + (average - s): progress made meanwhile is kept.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from flodl.errors import DivergedError
from flodl.monitor.ledger import Account
from flodl.ranks.planning.schedule import WindowPlan
from flodl.train.observers.guards.guard import Setback
from flodl.train.policies.window_loop import WindowLoop, WindowRun

if TYPE_CHECKING:
    from flodl.ranks.averaging.average import Averaged, ParameterAverager, Round
    from flodl.ranks.group import Pending
    from flodl.train.loop import Loop
    from flodl.train.policies.moment import Moment


@dataclass(slots=True)
class _UnderWay:
    """An average in progress."""

    plan: WindowPlan
    round: Round
    rows: Pending
    batches: int = 0
    """Batches trained since the snapshot."""
    here_at: float | None = None
    """Time in seconds at which the parts of all ranks had arrived."""


@final
class OverlappedLoop(WindowLoop):
    """Trains on while an average is in progress; one average at a time.

    Args:
        worker: Trains the batches.
        averager: Averages the worker's model.
    """

    def __init__(self, worker: Loop, averager: ParameterAverager) -> None:
        super().__init__(worker, averager)
        self._under_way: _UnderWay | None = None
        self._exposed_ms = 0.0
        self._latest_average: Averaged | None = None

    def run_to_barrier(self) -> None:
        """Train window after window; before a barrier, wait for the average of the last one."""
        plan = self._open()
        while plan is not None:
            try:
                plan = self._train_window(plan)
            except (Setback, DivergedError) as problem:
                self._begin_again(problem)
                plan = self._open()

    def _train_window(self, plan: WindowPlan) -> WindowPlan | None:
        """Train a window; return the next one, None before a barrier or if all ranks stop."""
        worker, run, guard = self._worker, WindowRun(), self.guard
        self._train(plan, run)
        self._land_at_once()
        at_once = worker.stops or self._checkpoint_due() or worker.stops.acts
        at_once = at_once or (guard is not None and guard.is_due())
        following = None if at_once else self._start(plan, run)
        if following is None and self._under_way is None:
            self._close_in_the_open(plan, run)
            worker.act()
            if worker.stops:
                return None
            self._keep_if_due()
            following = self._open()
        if worker.schedule.overshoot == 0:
            self._land_at_once()
        return following

    def _start(self, plan: WindowPlan, run: WindowRun) -> WindowPlan | None:
        """Open the next window and start to average this one.

        Returns:
            The next window; None before a barrier, where no average is started.
        """
        worker = self._worker
        row = self._row(run, self._latest_average, self._exposed_ms)
        following = self._open()
        if following is None:
            return None
        self._worker.mark(self._words[0])
        began = time.perf_counter()
        round = self._averager.start(run.samples)
        self._under_way = _UnderWay(plan, round, worker.group.gather_later(row, prompt=True))
        self._exposed_ms = (time.perf_counter() - began) * 1000
        worker.book(Account.SYNC)
        return following

    def _close_in_the_open(self, plan: WindowPlan, run: WindowRun) -> None:
        self._look()
        averaged, sync_ms = self._average(run.samples)
        row = self._row(run, averaged, sync_ms)
        rows = self._worker.group.gather(row, prompt=True)
        self._exposed_ms, self._latest_average = 0.0, None
        self._close(plan, rows, averaged=True)

    def return_to(self, moment: Moment) -> None:
        """Go back to a moment; model and optimizer are there already."""
        super().return_to(moment)
        self._under_way, self._exposed_ms, self._latest_average = None, 0.0, None

    def _between_batches(self) -> None:
        """Apply an average that has arrived; wait for one that is overdue."""
        under_way, worker = self._under_way, self._worker
        if under_way is None:
            return
        under_way.batches += 1
        # In a deterministic training an average arrives after a fixed number of batches.
        if self._declared_ms is None and self._arrived(under_way):
            self._land(under_way)
        elif under_way.batches >= worker.schedule.overshoot:
            self._worker.mark("throttle", rank=worker.group.rank)
            self._land(under_way)

    def _land_at_once(self) -> None:
        if self._under_way is not None:
            self._land(self._under_way)

    def _arrived(self, under_way: _UnderWay) -> bool:
        if not (under_way.round.done() and under_way.rows.done()):
            return False
        now = time.perf_counter()
        if under_way.here_at is None:
            under_way.here_at = now
        return now >= under_way.here_at + self._pad_ms / 1000

    def _land(self, under_way: _UnderWay) -> None:
        """Wait for an average and apply it."""
        worker = self._worker
        began = time.perf_counter()
        try:
            averaged = under_way.round.apply()
        except DivergedError as error:
            raise self._located(error) from None
        rows = under_way.rows.wait()
        self._look()
        while not self._arrived(under_way):
            time.sleep(0.0005)
        self._exposed_ms += (time.perf_counter() - began) * 1000
        self._under_way, self._latest_average = None, averaged
        worker.versions += 1
        worker.book(Account.SYNC)
        worker.timer.begin()
        self._worker.mark(self._words[1], ms=self._exposed_ms)
        self._judge(averaged)
        self._close(under_way.plan, rows, averaged=False)
