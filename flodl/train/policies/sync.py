"""SYNC: one batch per rank, then one shared step; the math of one process with a larger batch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from flodl.errors import DivergedError
from flodl.monitor.ledger import Account
from flodl.ranks.averaging.gradients import StepAverager
from flodl.ranks.planning.scheduler import take_step
from flodl.ranks.planning.spans import Spans, size
from flodl.train.observers.guards.guard import Setback
from flodl.train.observers.rank_acts import carry_out_acts
from flodl.train.policies.shared import SharedLoop

if TYPE_CHECKING:
    from collections.abc import Generator

    from torch import Tensor

    from flodl.data import Batch
    from flodl.ranks.planning.schedule import ScheduleState
    from flodl.train.loop import Loop
    from flodl.train.observers.guards.rank_guard import RankGuard
    from flodl.train.observers.guards.rank_left_out import RankLeftOut


@final
class NoBatchLeft(Exception):  # noqa: N818 - the loop handles it; no program sees it
    """The ranks have trained all batches of an epoch whose length nobody knew."""


@final
class SharedGradient:
    """Averages gradients and buffers over the ranks in the middle of a step.

    An engine calls it between the backward pass and the update, after :meth:`attach`.

    Attributes:
        samples: Number of samples in the mean of this rank's gradients.
        busy_ms: Duration of this rank's part of the latest step.
        sync_ms: Total time of the exchanges.
    """

    _worker: Loop

    def __init__(self) -> None:
        self.samples = 0
        self.busy_ms = self.sync_ms = 0.0

    def attach(self, worker: Loop) -> None:
        """Start to average the gradients of this rank with the others."""
        self._worker = worker
        backend = worker.plan.distributed.backend
        self._pad = worker.plan.distributed.simulate_sync_ms / 1000
        self._averager = StepAverager(worker.model, worker.group, backend)
        self._samples_since = 0
        self._whole = (worker.parts.batches.batch_size or 1) * worker.plan.accumulate

    def __call__(self) -> None:
        """Average the gradients and the changed buffers over the ranks.

        Raises:
            DivergedError: The loss of a rank was not finite; raised on all ranks.
            NoBatchLeft: No rank has a batch in this step; raised on all ranks.
        """
        worker = self._worker
        # Before waiting for the others: this rank's time does not include the wait.
        self.busy_ms = worker.timer.end_batch()
        worker.set_busy(False)
        worker.mark("sync_start")
        began = time.perf_counter()
        log = worker.logs.current
        refused = log.refused if log is not None and self.samples else 0
        told = (float(refused), float(self.samples > 0), *worker.stops.wishes())
        # Whole steps have weight 1, which changes no bit of a gradient: DDP has no weights.
        bad, taking, *wishes = self._averager.average(self.samples / self._whole, told)
        if self._pad:
            time.sleep(self._pad)
        self._samples_since += self.samples
        self.samples = 0
        worker.stops.heed(wishes)
        ms = (time.perf_counter() - began) * 1000
        self.sync_ms += ms
        worker.mark("sync_end", ms=ms)
        worker.timer.begin()
        if bad:
            raise DivergedError("the loss of a rank is not finite", epoch=0, step=0)
        if not taking:
            raise NoBatchLeft

    def begin_again(self) -> None:
        """Forget a step that was not completed."""
        self.samples = 0

    def settle(self) -> None:
        """Average all buffers before the model is evaluated or saved; collective."""
        self._averager.average_all_buffers(self._samples_since)
        self._samples_since = 0


@final
class SyncLoop(SharedLoop):
    """Takes ``world_size · accumulate`` consecutive batches per step.

    With ``partition_ratios`` it splits the samples of these batches by the ratios instead: the
    ranks get batches of different sizes.
    """

    def __init__(self, worker: Loop, gradient: SharedGradient) -> None:
        super().__init__(worker)
        self._gradient = gradient
        gradient.attach(worker)

    def run_to_barrier(self) -> None:
        """Take steps until the epoch is over."""
        if self.guard is not None:
            self.guard.forget()
        self._own = self._own_batches()
        self._worker.timer.begin()
        try:
            self._take_steps()
        finally:
            self._own.close()

    def _take_steps(self) -> None:
        worker, gradient, guard = self._worker, self._gradient, self.guard
        before = worker.schedule
        while steps := self._next_steps():
            if guard is None:
                self._take(self.left_out, steps)
            elif not self._guarded_step(guard, steps, before):
                before = worker.schedule
                continue
            if worker.schedule.complete > len(worker.history):
                gradient.settle()
                worker.spent(gradient.sync_ms, 0.0)
                gradient.sync_ms = 0.0
                worker.complete_epoch(worker.schedule.complete - 1, averaged=True)
                self._own = self._own_batches()
                worker.timer.begin()
                if guard is not None:
                    guard.forget()
            if worker.stops or self._checkpoint_due() or worker.stops.acts:
                gradient.settle()
            carry_out_acts(worker)
            if worker.stops:
                return
            self._keep_if_due()
            before = worker.schedule

    def _guarded_step(self, guard: RankGuard, steps: list[Spans], before: ScheduleState) -> bool:
        """Take a step, or leave it out; return False if the ranks have gone back.

        Raises:
            DivergedError: There were too many attempts; on all ranks.
        """
        worker, numbers = self._worker, [number for taken in steps for number in _numbers(taken)]
        self._begin_epochs(steps[-1][-1][1])
        guard.ready(before)
        try:
            own = self._take(guard, steps)
            ends = worker.schedule.complete > len(worker.history)
            certain = ends or self._checkpoint_due() or bool(worker.stops)
            guard.took(numbers[0], own, certain=certain)
            return True
        except (Setback, DivergedError) as problem:
            own = sum(self._is_own(taken) for taken in steps)
            went_back = guard.go_back(problem, numbers, own)
        self._own.close()
        if not went_back:
            raise guard.give_up(self._replay, numbers[0] // worker.config.batches_per_epoch)
        self._own = self._own_batches()
        self._gradient.begin_again()
        return False

    def _take(self, left_out: RankLeftOut | None, steps: list[Spans]) -> int | None:
        """Take a step, or leave it out.

        Returns:
            The number of batches of this rank in it; None if it was left out.
        """
        worker, numbers = self._worker, [number for taken in steps for number in _numbers(taken)]
        if left_out is None or not left_out.leaves_out(numbers):
            own = self._step(steps)
            worker.versions += 1
            return own
        self._begin_epochs(steps[-1][-1][1])
        for taken in steps:
            self._part(taken)  # read, so that the batches after it are the same
        left_out.pass_over(numbers, worker.schedule.position - sum(map(size, steps)))
        return None

    def _replay(self, until: int) -> None:
        """Take the steps up to a batch again, to find what is not finite."""
        guard = self.guard
        self._own = self._own_batches()
        self._gradient.begin_again()
        while steps := self._next_steps():
            if _numbers(steps[0])[0] > until:
                return
            self._take(guard, steps)

    def _is_own(self, taken: Spans) -> bool:
        """Whether this rank trains a batch of a step."""
        return self._worker.config.partition_ratios is not None or (
            len(_numbers(taken)) > self._worker.group.rank
        )

    def _own_batches(self) -> Generator[tuple[int, Tensor, Batch]]:
        """Load this rank's batches of the rest of the epoch ahead of the steps."""
        worker, rank = self._worker, self._worker.group.rank
        state, numbers = worker.schedule, list[int]()
        while state.complete == worker.schedule.complete:
            state, taken = take_step(state, worker.config)
            if not taken:
                break
            numbers += _numbers(taken)[rank : rank + 1]
        return self.data.some_batches(numbers)

    def _next_steps(self) -> list[Spans]:
        """Return the batches of one optimizer step, all from the same epoch."""
        worker = self._worker
        epoch = worker.schedule.complete
        found: list[Spans] = []
        while len(found) < worker.plan.accumulate and worker.schedule.complete == epoch:
            worker.schedule, taken = take_step(worker.schedule, worker.config)
            if not taken:
                break
            found.append(taken)
        return found

    def _step(self, steps: list[Spans]) -> int:
        """Take a step; return the number of batches of this rank in it."""
        worker, gradient = self._worker, self._gradient
        self._begin_epochs(steps[-1][-1][1])
        position = worker.schedule.position - sum(map(size, steps))
        mine = [part for taken in steps if (part := self._part(taken)) is not None]
        for index, (number, rows, batch, skip) in enumerate(mine, 1):
            gradient.samples += len(rows)
            closes = index == len(mine)
            self._train_batch(
                number, rows, batch, position, skip=skip, parts=len(mine), closes=closes
            )
        if not mine:
            self._follow(position)
        worker.book(Account.SYNC)
        return len(mine)

    def _part(self, taken: Spans) -> tuple[int, Tensor, Batch, int] | None:
        """Return this rank's batch of a step, or its share of the samples; None if none is left."""
        worker, rank = self._worker, self._worker.group.rank
        ratios = worker.config.partition_ratios
        if ratios is not None and len(taken) == 1:
            return self.data.share_of_samples(taken[0], ratios)
        numbers = _numbers(taken)[rank : rank + 1]
        if not numbers:
            return None
        # With ratios nothing was loaded ahead.
        source = self._own if ratios is None else self.data.some_batches(numbers)
        return *next(source), 0


def _numbers(taken: Spans) -> list[int]:
    return [number for start, stop in taken for number in range(start, stop)]
