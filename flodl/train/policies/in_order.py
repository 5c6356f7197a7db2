"""Each process trains its own batches of an epoch in order; no schedule shares them.

It is alone, or all exchanges are inside of a step. In a model that several processes share (FSDP),
they are in the forward and the backward pass. Ranks with data that can only be iterated average
their gradients before the update.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

from flodl.data import EpochIterator
from flodl.errors import DivergedError
from flodl.monitor.ledger import Account
from flodl.ranks.launch.begun import mark_begun
from flodl.train.metrics import recording_into
from flodl.train.observers.checkpoints import require_finite
from flodl.train.observers.guards.guard import Setback
from flodl.train.observers.guards.left_out import GuardedParts, repeated
from flodl.train.observers.guards.loop_guard import LoopGuard
from flodl.train.observers.guards.rewinding import tell_callbacks
from flodl.train.observers.rank_acts import carry_out_acts
from flodl.train.plan import optimizer_steps
from flodl.train.policies.base import PolicyLoop
from flodl.train.run.loop_state import UnfinishedEpoch
from flodl.train.run.training_state import Position

if TYPE_CHECKING:
    from flodl.data import IterableEpoch
    from flodl.ranks.group import Pending
    from flodl.train.epoch_metrics import EpochLog
    from flodl.train.loop import Loop
    from flodl.train.policies.sync import SharedGradient


@final
class InOrderLoop(PolicyLoop):
    """Trains epoch by epoch; every epoch ends at a barrier.

    Args:
        worker: The loop, which has begun.
    """

    def __init__(self, worker: Loop) -> None:
        super().__init__(worker)
        start = worker.start
        self._epoch, self._done = start.position.epoch, start.position.step
        self._known = start.state.unfinished
        guarded = GuardedParts(worker.plan, worker.parts, worker.engine, worker.rate.steered)
        guards = worker.plan.guards
        self._guard = LoopGuard(guards, guarded, start) if guards is not None else None
        self._left_out = self._guard or repeated(guarded, start)
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
        if self._guard is not None and self._done:
            self._guard.keep(self._done, alone=True)

    def guard_state(self) -> Mapping[str, Any]:
        """Return what guards know."""
        return self._left_out.state(self._epoch) if self._left_out is not None else {}

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
            self._known = UnfinishedEpoch()
        worker.book(Account.LOGGING)
        self._guarded(epoch)
        if (gradient := worker.gradient) is not None:
            gradient.settle()
            worker.spent(gradient.sync_ms, 0.0)
            gradient.sync_ms = 0.0
        worker.complete_epoch(epoch, averaged=True)

    def _guarded(self, epoch: int) -> None:
        """Train the batches of an epoch that remain; after a setback, a guard goes back in it."""
        worker, first, known = self._worker, self._done, self._known
        while True:
            try:
                self._train_rest(epoch, first, known)
                return
            except (Setback, DivergedError) as problem:
                guard = self._guard
                if guard is None:
                    raise
                found = guard.go_back(problem, worker.logs.seconds)
                if found is None:
                    # The steps that are trained again do not belong to it.
                    worker.checkpoints.trace.close()
                    raise guard.give_up(problem) from None
            first, known = found.done, found.unfinished
            self._done = worker.run.step = first
            worker.run.global_step = worker.engine.global_step
            worker.checkpoints.trace.rewind(worker.engine.global_step)
            tell_callbacks(worker.hooks, worker.run, found.rewind)
            worker.book(Account.CHECKPOINT)

    def _train_rest(self, epoch: int, first: int, known: UnfinishedEpoch) -> None:
        """Train the batches of an epoch from ``first`` on.

        Args:
            epoch: Counted from 0.
            first: Batches that are done.
            known: The measurements of these batches.
        """
        worker, loader, guard = self._worker, self._worker.parts.batches, self._guard
        logs, trace, reporter = worker.logs, worker.checkpoints.trace, worker.reporter
        batches = loader.epoch(epoch, first)
        logs.load([{"epoch": epoch, "losses": known.losses, "scalars": known.scalars}])
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
        self._begin_trace(log, epoch, first, batches)
        logs.restart_clock(known.seconds)
        worker.timer.begin()
        self._samples = 0
        if self._left_out is not None:
            self._left_out.enter(epoch)
        if guard is not None:
            guard.begin(first, log.losses, log.scalars)
        self._plan_due(next_time)
        try:
            with recording_into(log.scalars):
                self._done = self._train_batches(batches, first)
                if worker.gradient is not None:
                    self._follow_others()
            if guard is not None:
                guard.end(self._done)
        except BaseException:
            trace.drain(log.losses)
            if guard is not None:
                batches.close()
            raise
        finally:
            worker.engine.present()
        self._end(log, epoch, self._done)

    def _begin_trace(
        self, log: EpochLog, epoch: int, first: int, batches: EpochIterator | IterableEpoch
    ) -> None:
        worker = self._worker
        log.losses.record = worker.checkpoints.trace.loss_sink()
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
        if self._left_out is not None:
            log.samples -= self._left_out.samples
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
        skips = self._left_out.skips if self._left_out is not None else ()
        shared = worker.gradient
        done, parts = first, 1
        for done, batch in enumerate(batches, first + 1):
            lap(waiting)
            if skips and done - 1 in skips:
                self._pass_over(done, first)
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

    def _pass_over(self, done: int, first: int) -> None:
        """Leave out the batch before ``done``, because a guard decided it."""
        left_out, worker = self._left_out, self._worker
        if left_out is None:
            return
        left_out.pass_over(done - 1)
        if done not in left_out.skips:
            worker.checkpoints.trace.left_out(
                worker.run.epoch,
                size=worker.parts.batches.batch_size or 0,
                first=done,
                step=worker.engine.global_step,
                parts=worker.plan.accumulate,
                trained=done - first - sum(first <= one < done for one in left_out.skips),
            )

    # --- Between two steps ---------------------------------------------------------------------

    def _plan_due(self, next_time: float) -> None:
        worker = self._worker
        guard_step = self._guard.next_step if self._guard is not None else math.inf
        worker.due.plan(worker.engine.global_step, next_time, guard_step)
        if any(worker.stops.wishes()) or worker.checkpoints.unchecked:
            worker.due.wake()  # they came before the plan, which must not put them off

    def _look_up(self, done: int) -> None:
        """Do what is due between two steps, after ``done`` batches of the epoch."""
        worker, run, step = self._worker, self._worker.run, self._worker.engine.global_step
        self._done = done
        worker.checkpoints.check_once()
        mark_begun()
        if self._guard is not None:
            # Before anyone sees the losses, and before a checkpoint holds what they have caused.
            self._guard.look(done, certain=worker.due.checkpoint_due(step))
        run.step, run.global_step, run.loss = done, step, self._log.losses.latest
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
            carry_out_acts(worker)
        if stops.interrupted_by is not None:
            if self._done:
                self._log.losses.check()
                if self._guard is not None:
                    self._guard.look(self._done, certain=True)
            worker.stop_if_requested()
