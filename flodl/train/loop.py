"""The loop of a training on one device: from a plan to a trained model."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, final

import torch

from flodl import log
from flodl.data import EpochIterator, IterableLoader
from flodl.device import deterministic_algorithms, select_device
from flodl.errors import DivergedError
from flodl.launch.begun import mark_begun
from flodl.launch.interrupt import InterruptRequest
from flodl.monitor import EpochMetrics
from flodl.monitor.ledger import Account, TimeLedger
from flodl.train.callbacks import Hooks, TrainingRun
from flodl.train.checkpoints import (
    CheckpointKeeper,
    last_values,
    non_finite_parameters,
    require_finite,
)
from flodl.train.due_times import DueTimes
from flodl.train.epoch_end import call_back, diverged, end_state, evaluate, model_metrics
from flodl.train.guards.guard import Setback
from flodl.train.guards.left_out import GuardedParts, repeated
from flodl.train.guards.loop_guard import LoopGuard
from flodl.train.guards.rewinding import tell_callbacks
from flodl.train.handle import TrainerHandle
from flodl.train.learning_rate import SteeredRate
from flodl.train.loop_engine import engine_of_loop
from flodl.train.loop_state import EpochTexts, LoopState, UnfinishedEpoch, modes
from flodl.train.losses import loss_log
from flodl.train.metrics import ScalarLog, recording_into
from flodl.train.parts import assemble
from flodl.train.plan import TrainingPlan, Worker, optimizer_steps
from flodl.train.precision import FirstBatch
from flodl.train.reporting import Reporter, reported
from flodl.train.resume import resume, undone
from flodl.train.resume_hint import add_hint
from flodl.train.steering import UNSHARED, BetweenSteps, Steering
from flodl.train.step_trace import StepTrace
from flodl.train.training_state import Position

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from flodl.data import IterableEpoch


def train(plan: TrainingPlan) -> TrainerHandle:
    """Carry out a plan; however it ends, report the end to the run directory and the monitor."""
    if plan.record_timeline:
        from flodl.launch.group import LocalGroup
        from flodl.train.timelines import recorded

        with recorded(plan, LocalGroup()) as timed:
            return train(replace(timed, record_timeline=False))
    ledger = TimeLedger.since_process_start()
    history: list[EpochMetrics] = []
    with reported(plan, ledger, history) as reporter:
        device = select_device(plan.device)
        with deterministic_algorithms(device) if plan.deterministic else nullcontext():
            loop = TrainingLoop(plan, device, reporter, ledger, history)
            loop.run()
    return TrainerHandle(loop.model, history, average=loop.average, stopped=loop.stopped)


@final
class TrainingLoop:
    """Builds the parts of a plan once, and trains epoch by epoch."""

    def __init__(
        self,
        plan: TrainingPlan,
        device: torch.device,
        reporter: Reporter,
        ledger: TimeLedger,
        history: list[EpochMetrics],
    ) -> None:
        self._plan = plan
        self._reporter = reporter
        self._ledger = ledger
        self._history = history
        self._hooks = Hooks(plan.callbacks)
        self._due = DueTimes(
            plan.checkpoint_steps, every_step=self._hooks.watches_steps, last_step=plan.most_steps
        )
        self._interrupt = InterruptRequest(self._due.wake)
        self._assembly = parts = assemble(plan, device)
        self.model, self._loader, self.average = parts.model, parts.batches, parts.average
        self._worker = Worker(self.model, parts.optimizer, device)
        self._run = TrainingRun(self.model, parts.optimizer, device, plan.num_epochs, history)
        self._epoch_texts = EpochTexts()
        self._keeper = CheckpointKeeper(self.model, plan.run_dir)
        self._built = len(parts.optimizer.param_groups)
        # Before the resume, in which epoch_fn may set a schedule.
        self._rate = rate = SteeredRate(parts.schedule, alone=parts.torch_schedule is None)
        self._worker.steer(rate)
        self._start = start = resume(plan, parts, self._prepare_epoch)
        rate.scale = start.state.scale
        self._keeper.check(parts.parts({}))
        self._checks_state = True
        if start.source is not None:
            mark_begun()
        history.extend(start.state.history)
        if start.source is not None and plan.best is not None:
            self._keeper.adopt_best(start.source, start.position.epoch)
        ledger.load(start.state.ledger)
        done = start.position.global_step
        self._trace = StepTrace.begin(plan, self._loader, after=done, source=start.source)
        self._trace.take_norms_of(reporter.step_values)
        self._first_batch = FirstBatch(plan, begins=done == 0)
        self._scaler = parts.counted_scaler()
        self._engine = engine_of_loop(
            plan, parts, rate, done=done, scaler=self._scaler, ledger=ledger,
            values=reporter.step_values,
        )  # fmt: skip
        self._engine.adopt(start.state.engine)
        self._run.global_step = done
        self._steering = Steering(plan, parts, rate, self._due.wake)
        self._steering.restore(start.state.acts, done, start.source)
        guarded = GuardedParts(plan, parts, self._engine, rate)
        self._guard = LoopGuard(plan.guards, guarded, start) if plan.guards is not None else None
        self._left_out = self._guard or repeated(guarded, start)
        reporter.introduce(self.model, parts.optimizer, self._engine.report(), start.state.records)
        reporter.follow(self._run, self._engine)
        reporter.steer(self._steering)

    @property
    def stopped(self) -> str | None:
        """The reason why the training ended before its last epoch, or None."""
        return self._run.stopped

    def run(self) -> None:
        """Train every epoch, then write the model."""
        self._ledger.lap(Account.SETUP)
        try:
            # Not earlier: while data loads, no step could end, so nothing would honour a request.
            with self._interrupt:
                self._steering.open(UNSHARED if self._keeper.shared else "")
                self._hooks.call("on_train_start", self._run)
                self._start.rewind_generators()
                for epoch in range(self._start.position.epoch, self._plan.num_epochs):
                    if self._run.stopped is not None:
                        log.msg(f"  stopped after epoch {epoch}: {self._run.stopped}")
                        break
                    self._epoch(epoch)
            self._trace.finish(self.model, self._engine.global_step)
            with self._averaged():
                self._keeper.save_final(len(self._history), last_values(self._history))
            self._hooks.call("on_train_end", self._run)
        except DivergedError as error:
            told = diverged(error, self._keeper.whereabouts())
            self._hooks.tell_exception(self._run, told)
            raise told from None
        except BaseException as error:
            # First the hint: another signal may end a callback.
            if end_state(error) == "interrupted":
                checkpoint = self._keeper.to_resume(self._start.source)
                add_hint(error, self._plan.run_dir, checkpoint)
            self._hooks.tell_exception(self._run, error)
            raise
        finally:
            self._steering.close()
            self._reporter.tell_facts(self._engine.report())
            self._engine.close()
            self._trace.close()
            self._keeper.finish()
            self._loader.close()
            self._ledger.lap(Account.LOGGING)

    def _epoch(self, epoch: int) -> None:
        """Train, evaluate, report and save one epoch."""
        start = self._start
        first = start.position.step if epoch == start.position.epoch else 0
        self._run.epoch, self._run.step = epoch, first
        if first:  # epoch_fn ran when the parts were restored
            self._begin_again()
            start.rewind_generators()
        else:
            self._prepare_epoch(epoch)
            self._hooks.call("on_epoch_start", self._run)
        self._ledger.lap(Account.LOGGING)
        metrics = self._guarded(epoch, first)
        self._ledger.lap(Account.EVALUATION)
        self._hooks.call("on_epoch_end", self._run, metrics)
        self._history.append(metrics)
        if self._assembly.torch_schedule is not None:
            self._assembly.torch_schedule.end_epoch(metrics)
        self._keep_best()
        self._report(metrics)
        if epoch + 1 < self._plan.num_epochs:
            self._carry_out_acts(epoch + 1, 0)
        self._stop_if_requested(epoch + 1, 0)

    def _begin_again(self) -> None:
        """Tell the callbacks that an epoch continues."""
        if self._hooks.has("on_epoch_start"):
            with undone(self._assembly.parts({}), self._built):
                self._hooks.call("on_epoch_start", self._run)

    def _prepare_epoch(self, epoch: int) -> None:
        if self._plan.epoch_fn is not None:
            self._worker.current_epoch = epoch
            self._worker.local_step = self._run.global_step
            try:
                self._plan.epoch_fn(epoch, self._worker)
            except Exception as error:
                error.add_note(f"in epoch_fn before epoch {epoch} (counted from 0)")
                raise

    def _guarded(self, epoch: int, first: int) -> EpochMetrics:
        """Train the batches of an epoch that remain after ``first``; return the measurements.

        After a setback, a guard goes back inside the epoch.
        """
        known = self._start.state.unfinished if first else UnfinishedEpoch()
        while True:
            try:
                return self._measured(epoch, first, known)
            except (Setback, DivergedError) as problem:
                guard = self._guard
                if guard is None:
                    raise
                found = guard.go_back(problem, time.monotonic() - self._started)
                if found is None:
                    self._trace.close()  # the steps that are trained again do not belong to it
                    raise guard.give_up(problem) from None
            first, known = found.done, found.unfinished
            self._run.step, self._run.global_step = first, self._engine.global_step
            self._trace.rewind(self._engine.global_step)
            tell_callbacks(self._hooks, self._run, found.rewind)
            self._ledger.lap(Account.CHECKPOINT)

    def _measured(self, epoch: int, first: int, known: UnfinishedEpoch) -> EpochMetrics:
        """Train the batches of an epoch from ``first`` on; return the measurements.

        Args:
            epoch: Counted from 0.
            first: Batches that are done.
            known: The measurements of these batches.
        """
        batches = self._loader.epoch(epoch, first)
        self._losses = losses = loss_log(self._loader.device, epoch, known.losses)
        self._scalars = scalars = ScalarLog(self._engine, known.scalars)
        next_time = self._reporter.begin_epoch(
            epoch,
            steps=self._loader.num_batches,
            done=first,
            first_step=self._engine.global_step,
            losses=losses,
            scalars=scalars,
        )
        self._begin_trace(epoch, first, batches)
        self._started = time.monotonic() - known.seconds
        guard = self._guard
        if self._left_out is not None:
            self._left_out.enter(epoch)
        if guard is not None:
            guard.begin(first, losses, scalars)
        self._plan_due(next_time)
        try:
            with recording_into(scalars):
                done = self._train_batches(batches, first)
            if guard is not None:
                guard.end(done)
        except BaseException:
            self._trace.drain(losses)
            if guard is not None:
                batches.close()
            raise
        finally:
            self._engine.present()
        self._trace.end_epoch(self._engine.global_step)
        self._reporter.end_steps()
        if self._scaler is not None:
            self._scaler.tell_skipped(epoch, optimizer_steps(done, self._plan.accumulate))
        avg_loss, rate = losses.mean(), self._worker.current_lr
        run = self._run
        run.step, run.global_step, run.loss = done, self._engine.global_step, losses.latest
        self._check_parameters(epoch, done - 1)
        seconds = time.monotonic() - self._started
        self._ledger.lap(Account.LOGGING if self._loader.device.type == "cpu" else Account.SYNC)
        samples = self._loader.samples_in(done)
        if self._left_out is not None:
            samples -= self._left_out.samples
        return EpochMetrics(
            epoch=epoch,
            avg_loss=avg_loss,
            scalars={
                **model_metrics(self.model),
                **scalars.means(),
                **evaluate(self._plan.eval_fn, self.model, self._averaged(), epoch),
            },
            epoch_ms=seconds * 1000,
            throughput=samples / (seconds * 1000) if seconds else 0.0,
            share=[1.0],
            lr=rate,
        )

    def _train_batches(self, batches: EpochIterator | IterableEpoch, first: int) -> int:
        """Train on the batches of an epoch from ``first`` on; return how many are done."""
        engine, losses, due = self._engine, self._losses, self._due
        accumulate, lap, clock = self._plan.accumulate, self._ledger.lap, time.perf_counter
        waiting, schedule, scaler = Account.DATA, self._assembly.torch_schedule, self._scaler
        trace, skips = self._trace, self._left_out.skips if self._left_out is not None else ()
        done, parts = first, 1
        for done, batch in enumerate(batches, first + 1):
            lap(waiting)
            if skips and done - 1 in skips:
                self._pass_over(done, first)
                continue
            if self._first_batch.waits:
                self._first_batch.look(self.model, batch)
                lap(Account.SETUP)
            if engine.global_step >= trace.next_step:
                trace.look(self.model, batch, engine.global_step)
                lap(Account.LOGGING)
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
                self._run.step = done - 1
                error.add_note(f"in epoch {self._run.epoch}, step {done - 1} (both counted from 0)")
                raise
            if schedule is not None and (scaler is None or scaler.stepped):
                schedule.end_step()
            if clock() >= due.next_time or engine.global_step >= due.next_step:
                self._look_up(done)
                if self._run.stopped is not None:
                    break
        return done

    def _pass_over(self, done: int, first: int) -> None:
        """Leave out the batch before ``done``, because a guard decided it."""
        left_out = self._left_out
        if left_out is None:
            return
        left_out.pass_over(done - 1)
        if done not in left_out.skips:
            self._trace.left_out(
                self._run.epoch,
                size=self._loader.batch_size or 0,
                first=done,
                step=self._engine.global_step,
                parts=self._plan.accumulate,
                trained=done - first - sum(first <= one < done for one in left_out.skips),
            )

    def _plan_due(self, next_time: float) -> None:
        guard_step = self._guard.next_step if self._guard is not None else math.inf
        self._due.plan(self._engine.global_step, next_time, guard_step)
        if self._interrupt.requested or self._steering.mailbox.waiting or self._checks_state:
            self._due.wake()  # they came before the plan, which must not put them off

    def _begin_trace(self, epoch: int, first: int, batches: EpochIterator | IterableEpoch) -> None:
        self._losses.record = self._trace.loss_sink()
        self._trace.begin_epoch(
            epoch,
            batches.order if isinstance(batches, EpochIterator) else None,
            size=self._loader.batch_size or 0,
            first=first,
            step=self._engine.global_step,
            parts=self._plan.accumulate,
        )

    def _look_up(self, done: int) -> None:
        """Do what is due between two steps, after ``done`` batches of the epoch."""
        run, step = self._run, self._engine.global_step
        if self._checks_state:  # an optimizer has no state before its first step
            self._checks_state = False
            self._keeper.check(self._assembly.parts({}))
            mark_begun()
        if self._guard is not None:
            # Before anyone sees the losses, and before a checkpoint holds what they have caused.
            self._guard.look(done, certain=self._due.checkpoint_due(step))
        run.step, run.global_step, run.loss = done, step, self._losses.latest
        if self._hooks.watches_steps:
            self._engine.present()
            self._hooks.call("on_step_end", run)
        if self._due.is_over(step):
            run.stop(f"only {step} steps were asked for")
        # Plan first, then look at the request: a request between the two wakes the loop again.
        self._plan_due(self._reporter.tick(done))
        self._ledger.lap(Account.LOGGING)
        self._carry_out_acts(run.epoch, done)
        self._stop_if_requested(run.epoch, done)
        if self._due.checkpoint_due(step):
            self._losses.check()
            self._check_parameters(run.epoch, done - 1)
            self._save(run.epoch, done)

    def _carry_out_acts(self, epoch: int, done: int) -> None:
        """Do what people asked for, after ``epoch`` complete epochs and ``done`` batches."""
        if not self._steering.mailbox.waiting:
            return
        self._engine.present()
        acts = BetweenSteps(self._interrupt, lambda: self._save_asked(epoch, done))
        paused = self._steering.carry_out(self._engine.global_step, acts)
        self._started += paused
        if self._guard is not None and done:
            # A later return to an earlier state would undo what was asked for.
            self._guard.keep(done, alone=True)
        self._ledger.lap(Account.IDLE if paused else Account.LOGGING)
        if self._steering.stopping:
            self._interrupt.ask()

    def _save_asked(self, epoch: int, done: int) -> str:
        """Save a checkpoint that somebody asked for; return why not, or an empty text."""
        if done and isinstance(self._loader, IterableLoader):
            return (
                "data that can only be iterated has no checkpoint inside an epoch; the one at the "
                "end of the epoch is written anyway"
            )
        if done:
            self._losses.check()
        if bad := non_finite_parameters(self.model):
            return f"parameters are not finite: {', '.join(bad[:3])}"
        self._save(epoch, done)
        return ""

    def _check_parameters(self, epoch: int, step: int) -> None:
        when = f"at epoch {epoch}, step {step} (both counted from 0)"
        require_finite(self.model, when, epoch=epoch, step=step)

    def _averaged(self) -> AbstractContextManager[None]:
        """Give the model its averaged weights, if there are any."""
        return self.average.applied() if self.average is not None else nullcontext()

    def _report(self, metrics: EpochMetrics) -> None:
        """Report a finished epoch, and save its checkpoint if one is due."""
        plan, version = self._plan, metrics.epoch + 1
        self._reporter.tell_facts(self._engine.report())
        self._reporter.end_epoch(metrics)
        if plan.metrics_fn is not None:
            call_back("metrics_fn", metrics.epoch, plan.metrics_fn, metrics)
        self._ledger.lap(Account.LOGGING)
        if version % plan.checkpoint_every == 0:
            self._save(version, 0)
            if plan.checkpoint_fn is not None:
                call_back("checkpoint_fn", metrics.epoch, plan.checkpoint_fn, version, self.model)
            self._ledger.lap(Account.CHECKPOINT)

    def _stop_if_requested(self, epoch: int, step: int) -> None:
        """Honour a signal that asks to stop: save the state if it is finite, then stop."""
        if not self._interrupt.requested:
            return
        if step:
            self._losses.check()
            if self._guard is not None:
                self._guard.look(step, certain=True)
        # A signal reaches the processes of a sharded model at different steps, or not all of them.
        if not self._keeper.shared and not non_finite_parameters(self.model):
            self._save(epoch, step)
        self._interrupt.stop(
            f"stopped after {epoch} complete epochs and {step} steps; {self._keeper.whereabouts()}"
        )

    def _save(self, epoch: int, step: int) -> None:
        """Save the state after ``epoch`` complete epochs and ``step`` batches of the next."""
        # A state that cannot be resumed must not replace one that can.
        unusable = step and isinstance(self._loader, IterableLoader)
        if unusable or not self._keeper.keeps:
            return
        self._engine.present()
        extra = self._loop_state(step).as_json(self._epoch_texts)
        position = Position(epoch, step, self._engine.global_step)
        self._keeper.save(self._assembly.parts(extra), position, last_values(self._history))
        if self._guard is not None and step:
            self._guard.keep(step, alone=True)
        if self._plan.run_dir is not None:
            self._hooks.call("on_checkpoint", self._run, self._plan.run_dir.last_checkpoint)
        self._ledger.lap(Account.CHECKPOINT)

    def _keep_best(self) -> None:
        """Save the model that was just evaluated, if no earlier epoch was better."""
        best, epochs = self._plan.best, len(self._history)
        if best is not None and self._keeper.agreed(best.reached(self._history)):
            with self._averaged():
                position = Position(epochs, 0, self._engine.global_step)
                self._keeper.save_best(position, last_values(self._history))
            self._ledger.lap(Account.CHECKPOINT)

    def _loop_state(self, step: int) -> LoopState:
        unfinished = UnfinishedEpoch()
        if step:
            unfinished = UnfinishedEpoch(
                losses=self._losses.state(),
                scalars=self._scalars.state(),
                seconds=time.monotonic() - self._started,
            )
        return LoopState(
            history=self._history,
            records=self._reporter.records(),
            unfinished=unfinished,
            ledger=self._ledger.state_dict(),
            grouping={"accumulate": self._plan.accumulate},
            engine=self._engine.decision(),
            acts=self._steering.saved(),
            guard=self._left_out.state(self._run.epoch) if self._left_out is not None else {},
            scale=self._rate.scale,
            **modes(self.model),
        )
