"""Take the steps of one process, and record them: losses, samples, times, the trace.

Due times say when the loop must do something besides steps.
"""

from __future__ import annotations

import math
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from flodl.errors import DivergedError
from flodl.monitor.ledger import Account
from flodl.ranks.launch.launcher import mark_begun
from flodl.train.observers.step_trace import StepTrace
from flodl.train.step.tuned import EagerEngine, TunedEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flodl.monitor.ledger import TimeLedger
    from flodl.ranks.clocks import BatchTimer
    from flodl.ranks.group import Group
    from flodl.ranks.ledger_format import Stretch
    from flodl.ranks.sample_ledger import SampleRecorder
    from flodl.train.callbacks import Hooks, TrainingRun
    from flodl.train.epoch_metrics import EpochLog, EpochLogs
    from flodl.train.observers import Marks
    from flodl.train.observers.reporting import Reporter
    from flodl.train.observers.steering import Steering
    from flodl.train.parts import Assembly, CountedRate
    from flodl.train.policies.feed import Part, SharedGradient
    from flodl.train.settings import TrainingPlan
    from flodl.train.step.precision import FirstBatch


@final
@dataclass(frozen=True, slots=True)
class Counted:
    """What a process counts between two steps, to go back to it; the feed counts the rest."""

    logs: Sequence[Mapping[str, Any]]
    samples: tuple[list[Stretch], list[Stretch]]
    local_step: int
    epoch: int
    step: int
    trace_steps: int


@final
@dataclass(kw_only=True, slots=True)
class Steps:
    """Takes steps; everything that it needs is made before.

    Attributes:
        plan: The settings.
        parts: Model, optimizer, loader and the rest.
        engine: Takes the steps.
        logs: The measurements of the unfinished epochs.
        run: What callbacks see.
        hooks: The callbacks of the program.
        reporter: Shows the progress.
        leads: Whether this process shows it.
        marks: Mark in the timeline.
        samples: Record which batches this process trains.
        trace: Records the steps of rank 0; None without a run directory.
        ledger: The time ledger.
        rate: The learning rate.
        timer: Times the batches.
        due: When something besides steps is due, if batches are trained in order.
        first_batch: Looks at the first batch of a training.
        gradient: Averages the gradients of a step over the ranks; None if they do not.
        local_step: Batches that this process has trained.
        after_first: Called once, after the first step of this process.
        told: The last epoch that the reporter has begun; -1 before the first.
    """

    plan: TrainingPlan
    parts: Assembly
    engine: TunedEngine
    logs: EpochLogs
    run: TrainingRun
    hooks: Hooks
    reporter: Reporter
    leads: bool
    marks: Marks
    samples: SampleRecorder
    trace: StepTrace | None
    ledger: TimeLedger
    rate: CountedRate
    timer: BatchTimer
    due: DueTimes
    first_batch: FirstBatch
    gradient: SharedGradient | None
    local_step: int
    after_first: Callable[[], object] | None
    told: int = -1

    # --- Batches that a schedule gives to this rank ----------------------------------------------

    def train(self, part: Part) -> float:
        """Train a batch of several ranks, or a part of it.

        Returns:
            Milliseconds since the end of the previous batch, without time spent waiting for other
            ranks.
        """
        loader = self.parts.loader
        epoch, within = divmod(part.number, loader.num_batches)
        known, engine, samples = self.logs.of(epoch), self.engine, len(part.rows)
        self.ledger.lap(Account.DATA)
        if self.first_batch.waits:
            self.first_batch.look(self.parts.model, part.batch)
            self.ledger.lap(Account.SETUP)
            self.timer.begin()  # the comparison says nothing about the speed of this rank
        self.marks.busy(True)
        self._reach(part.position)
        known.losses.expect(samples)
        gradient, trace = self.gradient, self.trace
        if gradient is not None:
            gradient.expect(known, samples)
        if trace is not None and trace.steps >= trace.next_step:
            trace.look(self.parts.model, part.batch, trace.steps)
        try:
            engine.step(part.batch, known.losses, parts=part.parts, closes=part.closes)
        except Exception as error:
            error.add_note(f"in epoch {epoch}, batch {within} (both counted from 0)")
            raise
        place = within * loader.batch_size + part.skip
        self.samples.trained_samples(epoch, place, part.position, part.rows)
        if trace is not None:
            trace.trained(
                epoch, place, samples, parts=part.parts, closes=part.closes, order=loader.order
            )
        self.local_step += 1
        known.batches += 1
        known.samples += samples
        self.run.step += 1
        if part.closes:
            self.notify(known)
        self._show(epoch, part)
        ms = self.timer.end_batch() if gradient is None or not part.closes else gradient.busy_ms
        known.busy_ms += ms
        self.marks.busy(False)
        return ms

    def follow(self, position: int) -> None:
        """Take part in a shared step without a batch on this rank."""
        self._reach(position)
        self.engine.follow()
        if (trace := self.trace) is not None:
            trace.steps += 1
        self.notify(self.logs.of(position // self.parts.loader.num_batches))

    def _reach(self, position: int) -> None:
        """Set the learning rate for a position; it is the same on every rank."""
        self.rate.steered.position = steps = position // self.plan.accumulate
        if self.parts.torch_schedule is not None:
            self.parts.torch_schedule.advance(steps)

    def _show(self, epoch: int, part: Part) -> None:
        """Update the progress display."""
        if not self.leads:
            return
        reporter, length = self.reporter, self.parts.loader.num_batches
        if epoch > self.told:
            if self.told >= 0:
                reporter.end_steps()
            self.told = epoch
            known = self.logs.of(epoch)
            reporter.begin_epoch(
                epoch,
                steps=length,
                done=0,
                first_step=self.engine.global_step - part.closes,
                losses=known.losses,
                scalars=known.scalars,
            )
        elif reporter.is_due:
            reporter.tick(max(0, min(part.position - epoch * length, length)))

    # --- Between two steps -----------------------------------------------------------------------

    def notify(self, log: EpochLog) -> None:
        """Call the hooks after an optimizer step; end a training that was to take no more."""
        run = self.run
        if self.after_first is not None:
            after_first, self.after_first = self.after_first, None
            after_first()
        mark_begun()
        run.global_step = self.engine.global_step
        if self.hooks.watches_steps:
            self.engine.present()
            self.tell_loss(log)
            self.hooks.call("on_step_end", run)
        if self.due.is_over(self.engine.global_step):
            self.run.stop(f"only {self.engine.global_step} steps were asked for")

    def step_scheduler(self) -> None:
        """Step the scheduler of torch after a step, unless a gradient scaler has left that out."""
        scaler, schedule = self.engine.settings.scaler, self.parts.torch_schedule
        if schedule is not None and (scaler is None or scaler.stepped):
            schedule.end_step()

    def tell_loss(self, log: EpochLog) -> None:
        """Let callbacks see the newest loss; a device may not have computed one of this epoch."""
        if (latest := log.losses.latest) is not None:
            self.run.loss = latest

    def take_over(self, plan: TrainingPlan, group: Group, steering: Steering) -> None:
        """Record and show the steps of this process from now on, as another one has done.

        Args:
            plan: The plan of a process that writes.
            group: The ranks.
            steering: What people ask for.
        """
        with suppress(DivergedError):  # the next average or the end of the epoch tells it
            self.logs.pass_on()
        self.plan, step = plan, self.engine.global_step
        self.trace = StepTrace.begin(plan, self.parts.batches, group, after=step, source=None)
        if self.trace is not None:
            self.logs.record_losses(self.trace.take_losses)
        records = self.reporter.take_over(plan)
        self.reporter.introduce(self.run, self.engine, records, steering)
        self.leads, self.told = True, -1

    # --- Going back ------------------------------------------------------------------------------

    def counted(self, trace_steps: int) -> Counted:
        """Return everything that is counted here.

        Args:
            trace_steps: Steps that the trace has.
        """
        run = self.run
        return Counted(
            self.logs.state(),
            self.samples.state(),
            self.local_step,
            run.epoch,
            run.step,
            trace_steps,
        )

    def return_to(self, counted: Counted) -> None:
        """Go back to the result of :meth:`counted`; the engine is there. Progress is told again."""
        run = self.run
        self.logs.go_back(counted.logs)
        self.samples.go_back(counted.samples)
        if (trace := self.trace) is not None:
            trace.rewind(counted.trace_steps)
        self.local_step, run.epoch, run.step = counted.local_step, counted.epoch, counted.step
        run.global_step = self.engine.global_step
        self.told = -1
        self.timer.begin()

    @contextmanager
    def plainly(self) -> Iterator[None]:
        """Take steps that call hooks, as compiled code does not, and tell no callback.

        The engine of the training would take plain steps for its decision, and keep that for the
        next run.
        """
        engine, watches = self.engine, self.hooks.watches_steps
        self.hooks.watches_steps = False
        engine.close()
        self.engine = EagerEngine(self.parts.model, self.parts.optimizer, engine.settings)
        self.engine.set_schedule(self.rate.steered.schedule)
        self.engine.global_step = engine.global_step
        try:
            yield
        finally:
            self.engine, self.hooks.watches_steps = engine, watches


@final
class DueTimes:
    """The next moment at which something besides a step is due.

    The loop compares both numbers after every optimizer step.

    Args:
        checkpoint_steps: Optimizer steps between two checkpoints; None for none.
        every_step: Something is due after every step.
        last_step: Optimizer steps after which the training stops; None for no limit.
    """

    __slots__ = ("_checkpoint_steps", "_every_step", "_last_step", "next_step", "next_time")

    def __init__(
        self, checkpoint_steps: int | None, *, every_step: bool, last_step: int | None = None
    ) -> None:
        self._last_step = last_step
        self._checkpoint_steps = checkpoint_steps
        self._every_step = every_step
        self.next_time = 0.0
        self.next_step: float = 0

    def watch_each_step(self) -> None:
        """Make something due after every step from now on."""
        self._every_step, self.next_step = True, 0

    def wake(self) -> None:
        """Make the loop check what is due after the current step; safe in a signal handler."""
        self.next_time = 0.0

    def plan(self, global_step: int, next_time: float, guard_step: float = math.inf) -> None:
        """Set what is due next.

        Args:
            global_step: Optimizer steps done.
            next_time: When the reporter is due.
            guard_step: Optimizer steps after which a guard is due.
        """
        self.next_time = next_time
        every = self._checkpoint_steps
        if self._every_step:
            self.next_step = 0
        else:
            self.next_step = guard_step
            if every is not None:
                self.next_step = min(guard_step, (global_step // every + 1) * every)
            if self._last_step is not None:
                self.next_step = min(self.next_step, self._last_step)

    def is_over(self, global_step: int) -> bool:
        """Whether this optimizer step is the last one."""
        return self._last_step is not None and global_step >= self._last_step
