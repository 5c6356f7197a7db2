"""Each process trains its own batches of an epoch in order; no schedule shares them.

It is alone, or all exchanges are inside of a step. In a model that several processes share (FSDP),
they are in the forward and the backward pass. Ranks with data that can only be iterated average
their gradients before the update.
"""

from __future__ import annotations

import math
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, final

from flodl.data import EpochIterator
from flodl.errors import DivergedError
from flodl.monitor.ledger import Account
from flodl.ranks.launch.begun import mark_begun
from flodl.train.metrics import ScalarLog, recording_into
from flodl.train.observers.checkpoints import require_finite
from flodl.train.observers.guards.guard import Setback
from flodl.train.observers.guards.loss_guard import Losses
from flodl.train.plan import optimizer_steps
from flodl.train.policies.base import PolicyLoop
from flodl.train.policies.moment import Moment
from flodl.train.run.training_state import Position
from flodl.train.step.losses import HostLossLog, loss_log

if TYPE_CHECKING:
    from collections.abc import Collection

    from flodl.data import IterableEpoch
    from flodl.ranks.group import Pending
    from flodl.train.epoch_metrics import EpochLog
    from flodl.train.loop import Loop
    from flodl.train.observers.guards.first_non_finite import FirstNonFinite
    from flodl.train.policies.sync import SharedGradient


@final
class InOrderLoop(PolicyLoop):
    """Trains epoch by epoch; every epoch ends at a barrier.

    Args:
        worker: The loop, which has begun.
    """

    def __init__(self, worker: Loop) -> None:
        super().__init__(worker)
        start, known = worker.start, worker.start.state.unfinished
        self._epoch, self._done = start.position.epoch, start.position.step
        if self._done:
            form = {"epoch": self._epoch, "losses": known.losses, "scalars": known.scalars}
            worker.logs.load([form])
        self._seconds, self._judged = known.seconds, 0
        self._watch(worker.plan.accumulate)
        self._wishes: Pending | None = None
        if worker.gradient is not None:
            worker.gradient.attach(worker)

    # --- The place -----------------------------------------------------------------------------

    @property
    def at_barrier(self) -> bool:
        """Whether the epoch is over."""
        return self._done == 0

    def pass_barrier(self) -> None:
        """Carry out what people asked for, before the next epoch."""
        worker, stops = self._worker, self._worker.stops
        self._hear()  # what was said in the last step
        self._wishes = None
        rows = worker.peers.gather(stops.wishes())
        stops.heed([max(wish) for wish in zip(*rows, strict=True)])
        self._carry_out_acts()

    def place(self) -> Position:
        """Return complete epochs, batches of the next one, and optimizer steps."""
        return Position(self._epoch, self._done, self._worker.engine.global_step)

    def told_place(self) -> str:
        """Return how much is trained, for people."""
        return f"{self._epoch} complete epochs and {self._done} steps"

    def forget(self) -> None:
        """Never go back past this point."""
        super().forget()
        if self.guard is not None and self._done:
            self.guard.keep()

    def windows(self) -> tuple[int, tuple[int, ...]]:
        """Return the batches between two exchanges: every step has one."""
        return 1, (1,) * self._worker.group.world_size

    def set_rate_place(self) -> None:
        """Do nothing: the place of a rate is the number of the step."""

    # --- An epoch ------------------------------------------------------------------------------

    def run_to_barrier(self) -> None:
        """Train the rest of an epoch."""
        worker, epoch = self._worker, self._epoch
        if not self._done:
            worker.begin_epoch(epoch)
            self._seconds = 0.0
            super().forget()
        worker.book(Account.LOGGING)
        self._guarded(epoch)
        if (gradient := worker.gradient) is not None:
            gradient.settle()
            worker.spent(gradient.sync_ms, 0.0)
            gradient.sync_ms = 0.0
        worker.complete_epoch(epoch, averaged=True)

    def _guarded(self, epoch: int) -> None:
        """Train the batches of an epoch that remain; after a setback, a guard goes back in it."""
        while True:
            try:
                self._train_rest(epoch, self._done)
                return
            except (Setback, DivergedError) as problem:
                guard, setback = self.guard, problem
                if guard is None:
                    raise
                if isinstance(setback, DivergedError):
                    setback = guard.cause(
                        setback,
                        epoch,
                        guard.nth_trained(epoch, setback.step),
                        before=isinstance(self._log.losses, HostLossLog),
                    )
                self._seconds = self._worker.logs.seconds
                self._go_back(guard, setback)
            self._worker.book(Account.CHECKPOINT)

    def _train_rest(self, epoch: int, first: int) -> None:
        """Train the batches of an epoch from ``first`` on.

        Args:
            epoch: Counted from 0.
            first: Batches that are done.
        """
        worker, loader, guard = self._worker, self._worker.parts.batches, self.guard
        logs, trace, reporter = worker.logs, worker.checkpoints.trace, worker.reporter
        batches = loader.epoch(epoch, first)
        self._log = log = logs.of(epoch)
        next_time = reporter.begin_epoch(
            epoch,
            steps=loader.num_batches,
            done=first,
            first_step=worker.engine.global_step,
            losses=log.losses,
            scalars=log.scalars,
        )
        worker.told = epoch
        self._begin_trace(epoch, first, batches)
        logs.restart_clock(self._seconds)
        worker.timer.begin()
        self._samples = 0
        if guard is not None:
            self._judged = int(log.losses.state()[1])
            guard.ready()
        self._plan_due(next_time)
        try:
            with recording_into(log.scalars):
                self._done = self._train_batches(batches, first)
                if worker.gradient is not None:
                    self._follow_others()
            if guard is not None:
                guard.look(certain=True, keeps=False)
                guard.pause()
        except BaseException:
            trace.drain(log.losses)
            if guard is not None:
                batches.close()
            raise
        finally:
            worker.engine.present()
        self._end(log, epoch, self._done)

    def _begin_trace(self, epoch: int, first: int, batches: EpochIterator | IterableEpoch) -> None:
        worker = self._worker
        worker.logs.record_losses(worker.checkpoints.trace.loss_sink())
        worker.checkpoints.trace.begin_epoch(
            epoch,
            batches.order if isinstance(batches, EpochIterator) else None,
            size=worker.parts.batches.batch_size or 0,
            first=first,
            step=worker.engine.global_step,
            parts=worker.plan.accumulate,
        )

    def _end(self, log: EpochLog, epoch: int, done: int) -> None:
        """End the steps of an epoch; the parameters are checked."""
        worker = self._worker
        if worker.scaler is not None:
            worker.scaler.tell_skipped(epoch, optimizer_steps(done, worker.plan.accumulate))
        log.losses.check()
        run = worker.run
        run.step, run.global_step = done, worker.engine.global_step
        run.loss = log.losses.latest
        self._check_parameters()
        log.batches, log.samples = done, worker.parts.batches.samples_in(done)
        if self.left_out is not None:
            log.samples -= self.left_out.samples(epoch)
        self._epoch, self._done = epoch + 1, 0

    def _check_parameters(self) -> None:
        epoch, step = self._epoch, self._done - 1
        when = f"at epoch {epoch}, step {step} (both counted from 0)"
        require_finite(self._worker.model, when, epoch=epoch, step=step)

    # --- Batches -------------------------------------------------------------------------------

    def _train_batches(self, batches: EpochIterator | IterableEpoch, first: int) -> int:
        """Train on the batches of an epoch from ``first`` on; return how many are done."""
        worker = self._worker
        engine, losses, due = worker.engine, self._log.losses, worker.due
        accumulate, lap, clock = worker.plan.accumulate, worker.ledger.lap, time.perf_counter
        waiting, schedule, scaler = Account.DATA, worker.parts.torch_schedule, worker.scaler
        trace = worker.checkpoints.trace
        skips = self.left_out.skips(self._epoch) if self.left_out is not None else ()
        shared = worker.gradient
        done, parts = first, 1
        for done, batch in enumerate(batches, first + 1):
            lap(waiting)
            if skips and done - 1 in skips:
                self._pass_over(done, first, skips)
                continue
            if worker.first_batch.waits:
                worker.first_batch.look(worker.model, batch)
                lap(Account.SETUP)
            if engine.global_step >= trace.next_step:
                trace.look(worker.model, batch, engine.global_step)
                lap(Account.LOGGING)
            if shared is not None:
                self._expect(shared, done)
            try:
                if accumulate == 1:
                    engine.step(batch, losses)
                else:
                    # The last group of an epoch may be smaller: then each of its batches counts
                    # more.
                    part = (done - 1) % accumulate
                    if part == 0:
                        parts = 1 + batches.ahead(accumulate - 1)
                    closes = part == parts - 1
                    engine.step(batch, losses, parts=parts, closes=closes)
                    if not closes:
                        continue
            except Exception as error:
                worker.run.step = done - 1
                where = f"in epoch {worker.run.epoch}, step {done - 1} (both counted from 0)"
                error.add_note(where)
                raise
            if schedule is not None and (scaler is None or scaler.stepped):
                schedule.end_step()
            if clock() >= due.next_time or engine.global_step >= due.next_step:
                self._look_up(done)
                if worker.stops.agreed:
                    break
        return done

    def _expect(self, gradient: SharedGradient, done: int) -> None:
        """Tell the log and the gradient how many samples the next batch has."""
        known = self._worker.parts.batches.samples_in(done)
        samples, self._samples = known - self._samples, known
        gradient.samples += samples
        self._log.expect(samples)

    def _follow_others(self) -> None:
        """Take the steps of the ranks that still have batches, until no rank has one."""
        # Imported here: a process that trains alone needs none of it.
        from flodl.train.policies.sync import NoBatchLeft

        worker, schedule = self._worker, self._worker.parts.torch_schedule
        with suppress(NoBatchLeft):
            while not worker.stops.agreed:
                worker.engine.follow()
                if schedule is not None:
                    schedule.end_step()
                self._look_up(self._done)

    def _pass_over(self, done: int, first: int, skips: Collection[int]) -> None:
        """Leave out the batch before ``done``, because a guard decided it."""
        left_out, worker = self.left_out, self._worker
        if left_out is None:
            return
        left_out.pass_over(self._epoch, done - 1)
        if done not in skips:
            worker.checkpoints.trace.left_out(
                worker.run.epoch,
                size=worker.parts.batches.batch_size or 0,
                first=done,
                step=worker.engine.global_step,
                parts=worker.plan.accumulate,
                trained=done - first - sum(first <= one < done for one in skips),
            )

    # --- Going back ----------------------------------------------------------------------------

    def losses(self, *, wait: bool | None) -> Losses:
        """Return the losses that were not judged yet."""
        log, first, guard, epoch = self._log.losses, self._judged, self.guard, self._epoch
        values = log.unjudged() if wait is None else log.to_judge(wait=wait)
        self._judged += len(values)

        def place_of(place: int) -> tuple[int, int]:
            count = first + (place if place >= 0 else len(values) - 1)
            return epoch, guard.nth_trained(epoch, count) if guard is not None else count

        return Losses(values, place_of)

    def moment(self) -> Moment:
        """Return everything that is counted, between two steps."""
        self._worker.run.step = self._done
        return Moment.of(self._worker, self._worker.engine.global_step)

    def return_to(self, moment: Moment) -> None:
        """Go back to a moment; model and optimizer are there already."""
        super().return_to(moment)
        self._done = moment.step

    def is_left(self, moment: Moment, epoch: int, batch: int) -> bool:
        """Whether a batch comes after a moment."""
        return (epoch, batch) >= (moment.epoch, moment.step)

    def train_again(self, setback: Setback, look: FirstNonFinite) -> str:
        """Train up to the batch of a setback; return where it ended."""
        worker, epoch, accumulate = self._worker, self._epoch, self._worker.plan.accumulate
        loader, skips = worker.parts.loader, self.left_out.skips(epoch) if self.left_out else ()
        losses, when = loss_log(loader.device, epoch), ""
        with (
            self._plainly() as engine,
            closing(loader.epoch(epoch, self._done)) as batches,
            recording_into(ScalarLog(engine)),
            suppress(DivergedError),
        ):
            for number, batch in enumerate(batches, self._done):
                if number > setback.batch or look.found:
                    break
                if number in skips:
                    continue
                when = f"in step {engine.global_step + 1} of the training, with batch {number}"
                parts = min(accumulate, loader.num_batches - number // accumulate * accumulate)
                closes = number % accumulate == parts - 1
                engine.step(batch, losses, parts=parts, closes=closes)
                losses.check()
        return when

    # --- Between two steps ---------------------------------------------------------------------

    def _plan_due(self, next_time: float) -> None:
        worker = self._worker
        guard_step = self.guard.next_step if self.guard is not None else math.inf
        worker.due.plan(worker.engine.global_step, next_time, guard_step)
        if any(worker.stops.wishes()) or worker.checkpoints.unchecked:
            worker.due.wake()  # they came before the plan, which must not put them off

    def _look_up(self, done: int) -> None:
        """Do what is due between two steps, after ``done`` batches of the epoch."""
        worker, run, step = self._worker, self._worker.run, self._worker.engine.global_step
        self._done = done
        worker.checkpoints.check_once()
        mark_begun()
        run.step, run.global_step = done, step
        if self.guard is not None:
            # Before anyone sees the losses, and before a checkpoint holds what they have caused.
            self.guard.look(certain=worker.due.checkpoint_due(step))
        run.loss = self._log.losses.latest
        if worker.hooks.watches_steps:
            worker.engine.present()
            worker.hooks.call("on_step_end", run)
        worker.stop_at_last_step()
        if worker.due.is_over(step):  # on all peers: they take every step together
            worker.stops.agree([run.stopped])
        # Plan first, then look at the request: a request between the two wakes the loop again.
        self._plan_due(worker.reporter.tick(done))
        worker.book(Account.LOGGING)
        self._hear()
        self._carry_out_acts()
        if worker.due.checkpoint_due(step):
            self._log.losses.check()
            self._check_parameters()
            worker.save()

    def _hear(self) -> None:
        """Learn what people and signals ask for.

        Processes that share a model learn it one step later, so that none waits for the others.
        """
        worker, stops = self._worker, self._worker.stops
        if worker.gradient is not None:
            return  # the step itself has told all ranks
        if not worker.shared:
            stops.heed(stops.wishes())
            return
        said, self._wishes = self._wishes, worker.peers.gather_later(stops.wishes())
        if said is not None:
            stops.heed([max(wish) for wish in zip(*said.wait(), strict=True)])

    def _carry_out_acts(self) -> None:
        """Do what people asked for, and honour a signal that asks to stop."""
        worker, stops = self._worker, self._worker.stops
        acts = stops.acts and self._epoch < worker.plan.num_epochs
        if worker.gradient is not None and (acts or stops.interrupted_by is not None):
            worker.gradient.settle()
        if acts:
            worker.engine.present()
            worker.act()
        if stops.interrupted_by is not None:
            if self._done:
                self._log.losses.check()
                if self.guard is not None:
                    self.guard.look(certain=True)
            worker.stop_if_requested()
