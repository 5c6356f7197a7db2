"""SYNC: one batch per rank, then one shared step; the math of one process with a larger batch."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, final

from flodl.errors import DivergedError
from flodl.monitor.ledger import Account
from flodl.ranks.averaging.gradients import StepAverager
from flodl.ranks.planning.scheduler import take_step
from flodl.ranks.planning.spans import Spans, numbers, size
from flodl.train.observers.guards.guard import Setback
from flodl.train.policies.shared import SharedLoop

if TYPE_CHECKING:
    from collections.abc import Generator

    from torch import Tensor

    from flodl.data import Batch
    from flodl.train.loop import Loop
    from flodl.train.observers.guards.first_non_finite import FirstNonFinite


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
        self.forget()
        self._own = self._own_batches()
        self._worker.timer.begin()
        try:
            self._take_steps()
        finally:
            self._own.close()

    def _take_steps(self) -> None:
        worker, gradient = self._worker, self._gradient
        while True:
            self._end_epochs()
            before, steps = worker.schedule, self._next_steps()
            if not steps:
                return
            after, worker.schedule = worker.schedule, before
            self._begin_epochs(steps[-1][-1][1])
            if self.guard is not None:
                self.guard.ready()
            worker.schedule = after
            try:
                self._step(steps)
                self._pass_left_out()
                self._look()
            except (Setback, DivergedError) as problem:
                self._begin_again(problem, steps)
                continue
            self._end_epochs()
            if worker.stops or self._checkpoint_due() or worker.stops.acts:
                gradient.settle()
            worker.act()
            if worker.stops:
                return
            self._keep_if_due()

    def _end_epochs(self) -> None:
        """End the epochs that are complete."""
        worker, gradient = self._worker, self._gradient
        self._pass_left_out()
        if worker.schedule.complete == self._ended:
            return
        gradient.settle()
        worker.spent(gradient.sync_ms, 0.0)
        gradient.sync_ms = 0.0
        self._complete_epochs(averaged=True)
        self._own.close()
        self._own = self._own_batches()
        worker.timer.begin()

    # --- Going back ----------------------------------------------------------------------------

    def _look(self) -> None:
        """Judge the losses, if that is due."""
        worker, guard = self._worker, self.guard
        if guard is None:
            return
        ends = worker.schedule.complete > self._ended
        certain = ends or self._checkpoint_due() or bool(worker.stops)
        if certain or guard.is_due():
            guard.look(certain=certain, keeps=not ends)

    def _begin_again(self, problem: Setback | DivergedError, steps: list[Spans]) -> None:
        """Go back after a step that was bad.

        Raises:
            DivergedError: There is no guard, or there were too many attempts; on all ranks.
        """
        guard, setback = self.guard, problem
        if guard is None:
            raise problem
        self._own.close()
        if isinstance(setback, DivergedError):
            place = divmod(steps[0][0][0], self._worker.config.batches_per_epoch)
            setback = guard.cause(setback, *place, before=True)
        self._go_back(guard, setback)
        self._own = self._own_batches()
        self._gradient.begin_again()

    def train_again(self, setback: Setback, look: FirstNonFinite) -> str:
        """Take the steps up to the batch of a setback; return where it ended."""
        worker = self._worker
        until = setback.epoch * worker.config.batches_per_epoch + setback.batch
        self._own = self._own_batches()
        self._gradient.begin_again()
        with self._plainly(), suppress(DivergedError):
            while steps := self._next_steps():
                if steps[0][0][0] > until or any(worker.group.gather_objects(look.found)):
                    break
                self._step(steps)
        return f"on rank {worker.group.rank}"

    # --- Steps ---------------------------------------------------------------------------------

    def _own_batches(self) -> Generator[tuple[int, Tensor, Batch]]:
        """Load this rank's batches of the rest of the epoch ahead of the steps."""
        worker, rank = self._worker, self._worker.group.rank
        state, own = worker.schedule, list[int]()
        while state.complete == worker.schedule.complete:
            state, taken = take_step(state, worker.config)
            if not taken:
                break
            own += numbers(taken)[rank : rank + 1]
        return self.data.some_batches(own)

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

    def _step(self, steps: list[Spans]) -> None:
        """Take a step."""
        worker, gradient = self._worker, self._gradient
        self._begin_epochs(steps[-1][-1][1])
        position = worker.schedule.position - sum(map(size, steps))
        mine = [part for taken in steps if (part := self._part(taken)) is not None]
        for index, (number, rows, batch, skip) in enumerate(mine, 1):
            gradient.samples += len(rows)
            closes = index == len(mine)
            self._train_batch(
                number, rows, batch, position, unit=steps[0][0][0], skip=skip, parts=len(mine),
                closes=closes,
            )  # fmt: skip
        if not mine:
            self._follow(position)
        worker.book(Account.SYNC)
        worker.versions += 1

    def _part(self, taken: Spans) -> tuple[int, Tensor, Batch, int] | None:
        """Return this rank's batch of a step, or its share of the samples; None if none is left."""
        worker, rank = self._worker, self._worker.group.rank
        ratios = worker.config.partition_ratios
        if ratios is not None and len(taken) == 1:
            return self.data.share_of_samples(taken[0], ratios)
        own = numbers(taken)[rank : rank + 1]
        if not own:
            return None
        # With ratios nothing was loaded ahead.
        source = self._own if ratios is None else self.data.some_batches(own)
        return *next(source), 0
