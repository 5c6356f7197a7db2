"""Reports of a training: to the monitor, the progress line, the timeline and the time ledger."""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from fdl.base.units import format_duration
from flodl import log
from flodl.errors import FlodlError
from flodl.monitor import Monitor
from flodl.monitor.ledger import Account
from flodl.monitor.records import StepSeries
from flodl.ranks.launch.interrupt import undisturbed
from flodl.terminal import Style, is_first_rank, style_of
from flodl.train.callbacks import Callback, end_state
from flodl.train.handle import introduce
from flodl.train.observers.journal import NAME, Journal
from flodl.train.observers.progress import Progress
from flodl.train.step.decision import remember_told, was_told
from flodl.train.step.step_values import ParameterHistograms, StepValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flodl.monitor import EpochMetrics, EpochRecord
    from flodl.monitor.ledger import TimeLedger
    from flodl.monitor.records import Phase
    from flodl.train.callbacks import TrainingRun
    from flodl.train.metrics import ScalarLog
    from flodl.train.observers.steering import Steering
    from flodl.train.run.run_directory import EndState
    from flodl.train.settings import TrainingPlan
    from flodl.train.step.step_values import LossLog
    from flodl.train.step.tuned import TunedEngine


_SERIES_PERIOD = 1.0
"""Seconds between two deliveries of step values: the curve moves and costs little work."""


@final
class Reporter(Callback):
    """Passes on the measurements of a training, to each receiver at its own pace.

    Args:
        plan: Names the receivers.
        monitor: Receives epochs and step values; None for no monitor.
        ledger: The time ledger.
        clock: Monotonic seconds.
        history: The metrics of the complete epochs.

    Attributes:
        progress: Shows the progress on the terminal.
    """

    _engine: TunedEngine

    def __init__(
        self,
        plan: TrainingPlan,
        monitor: Monitor | None,
        ledger: TimeLedger,
        clock: Callable[[], float] = time.perf_counter,
        history: Sequence[EpochMetrics] = (),
    ) -> None:
        self._plan, self._history, self._told_epochs = plan, history, 0
        self._monitor = monitor
        self._ledger = ledger
        self._clock = clock
        self.progress = Progress(plan.num_epochs, _style(plan, monitor))
        self._facts: dict[str, object] = {}
        self._is_first = True
        self._acts_size = 0
        self._done: int | None = None
        self.step_values = StepValues() if monitor is not None else None
        """What single steps record for the monitor; None without one."""

    def take_over(self, plan: TrainingPlan) -> Sequence[EpochRecord]:
        """Report from now on what another rank has reported, and introduce the training again.

        Returns:
            The records of the epochs so far, without the load of the machine.
        """
        self._plan, self._monitor, self._facts = plan, monitor_of(plan), {}
        past = Monitor(plan.num_epochs, terminal=False)
        for metrics in self._history[: self._told_epochs]:
            past.log(metrics.epoch, metrics.epoch_ms / 1000, metrics)
        return past.history

    def introduce(
        self,
        run: TrainingRun,
        engine: TunedEngine,
        records: Sequence[EpochRecord],
        steering: Steering,
    ) -> None:
        """Describe the training to the monitor, and open the live page, whose buttons act on it.

        Args:
            run: The training, for its parts and its epoch.
            engine: The engine, for its steps; it shows their gradients if the plan asks for that.
            records: The epochs of the run that this run continues.
            steering: Takes the acts, and tells its pauses.
        """
        run.monitor, self._engine = self._monitor, engine
        self.tell_facts()
        self._told_epochs = len(self._history)
        if self._monitor is None:
            return
        if self.step_values is not None:
            self.step_values.watch(run.optimizer)
        introduce(run.model, self._monitor)
        if records:
            self._monitor.restore(records)
        if self._plan.run_dir is not None:
            self._plan.run_dir.attach(self._monitor)
        for make in self._plan.sinks:
            self._monitor.add_sink(make(self._plan.run_dir))
        _forget_ended()
        self._monitor.follow_position(lambda: (engine.global_step, run.epoch))
        if (every := self._plan.histograms) is not None:
            engine.watch_gradients(ParameterHistograms(run.model, self._monitor, every))
        steering.on_pause = self._tell_pause
        if (live := self._plan.live) is not None:
            try:
                self._monitor.serve(live.port, live.host, buttons=live.buttons)
            except FlodlError as failure:
                log.warning(f"there is no live page: {failure}")
            if live.buttons and (page := self._monitor.live_page) is not None:
                page.steer(steering.post)
                steering.announce = page.acts
                page.acts(steering.state())

    def records(self) -> Sequence[EpochRecord]:
        """Return the epochs that the monitor holds."""
        return self._monitor.history if self._monitor is not None else ()

    def tell_facts(self) -> None:
        """Report how the engine computes the steps, if that has changed."""
        if self._monitor is None and self._plan.run_dir is None:
            return
        facts = self._engine.report()
        if facts == self._facts:
            return
        self._facts = dict(facts)
        shown = {name: fact for name, fact in facts.items() if name != "stretches"}
        self._record({"engine": self._facts}, {"engine": shown})

    def tell_policy(self, name: str, reason: str) -> None:
        """Print and record when several ranks average, and why."""
        log.msg(f"  policy {name}: {reason}")
        chosen = {"policy": {"name": name, "reason": reason}}
        self._record(chosen, chosen)

    def _record(self, facts: Mapping[str, object], shown: Mapping[str, object]) -> None:
        if self._monitor is not None:
            self._monitor.set_metadata(shown)
        if self._plan.run_dir is not None:
            try:
                self._plan.run_dir.add_environment(facts)
            except FlodlError as failure:
                log.warning(str(failure))

    def begin_epoch(
        self,
        epoch: int,
        *,
        steps: int | None,
        done: int,
        first_step: int,
        losses: LossLog,
        scalars: ScalarLog,
    ) -> float:
        """Start an epoch.

        Args:
            epoch: Counted from 0.
            steps: Batches of the whole epoch; None if unknown.
            done: Batches done before a resume.
            first_step: Optimizer steps done before.
            losses: The losses of this epoch.
            scalars: The scalars of this epoch.

        Returns:
            When the first call of :meth:`tick` is due.
        """
        now = self._clock()
        self._losses, self._scalars = losses, scalars
        self._next_step, self._untold = first_step, list[float]()
        self._newest: dict[str, float] = {}
        if self.step_values is not None:
            self.step_values.begin_epoch()
        self.progress.begin(
            epoch, steps=steps, done=done, batch_size=self._plan.batch_size, now=now
        )
        # A page shows the first step as soon as it is done.
        self._series_due = now if self._is_first else now + _SERIES_PERIOD
        self._is_first = False
        self._progress_due = now + self.progress.period
        self._tell_progress(done, now)
        return min(self._series_due, self._progress_due)

    @property
    def is_due(self) -> bool:
        """Whether a call of :meth:`tick` is due."""
        return self._clock() >= min(self._series_due, self._progress_due)

    def tick(self, done: int) -> float:
        """Report what is due, after ``done`` batches of the epoch.

        Returns:
            When the next call is due.

        Raises:
            DivergedError: A loss is not finite.
        """
        now = self._clock()
        if now >= self._series_due:
            self._tell_series(wait=False)
            self._tell_progress(done, now)
            self.progress.settle()
            self._series_due = now + _SERIES_PERIOD
        if now >= self._progress_due:
            self.progress.update(done, self._losses.latest, self._newest, now)
            self._progress_due = now + self.progress.period
        return min(self._series_due, self._progress_due)

    def end_steps(self) -> None:
        """Report the rest of the step values."""
        self._tell_series(wait=True)
        if self._plan.eval_fn is not None:
            self.progress.end("evaluating")
            self._tell_progress(self.progress.steps, self._clock(), "evaluating")

    def on_epoch_end(self, run: TrainingRun, metrics: EpochMetrics) -> None:  # noqa: ARG002
        """Report a finished epoch."""
        self.tell_facts()
        self._told_epochs = len(self._history)
        if self._monitor is not None:
            self._tell_acts(self._monitor)
            if self.step_values is not None:
                lr, norm = self.step_values.lr, self.step_values.grad_norm
                metrics = replace(metrics, lr=lr, grad_norm=norm)
            self._monitor.log_ledger(self._ledger.seconds())
            self._monitor.log(metrics.epoch, metrics.epoch_ms / 1000, metrics)

    def finish(
        self, state: EndState, history: Sequence[EpochMetrics], error: BaseException | None
    ) -> None:
        """Report the end to the monitor and the run directory, and print how the time was spent."""
        self.progress.close()
        best, run = self._plan.best, self._plan.run_dir
        try:
            if self._monitor is not None:
                self._tell_acts(self._monitor)
                self._monitor.log_ledger(self._ledger.seconds())
                self._monitor.finish(
                    state,
                    best=best.epoch(history) if best is not None else None,
                    folder=run.typed if run is not None and run.writes else "",
                )
                if self._monitor.prints:
                    self._tell_time()
                    if state == "complete":
                        name_faster_engine(self._plan, self._ledger)
        finally:
            if run is not None:
                _finish_run(self._plan, state, len(history), error)
            if self._monitor is not None:
                _book_until_exit(self._ledger, self._monitor)

    def _tell_acts(self, monitor: Monitor) -> None:
        """Report the acts on the training, if there are new ones in its journal."""
        run = self._plan.run_dir
        if run is None or not run.writes:
            return
        try:
            size = (run.path / NAME).stat().st_size
            if size == self._acts_size:
                return
            acts = Journal.read(run.path / NAME)
        except OSError:
            return  # nobody has acted yet
        self._acts_size = size
        shown = {f"{number}, after step {act.step}": act.line for number, act in enumerate(acts, 1)}
        monitor.set_metadata({"acts": shown})

    def _tell_series(self, *, wait: bool) -> None:
        if wait:
            self._losses.check()
        values = self._untold + self._losses.take()
        size = self._plan.accumulate
        # Several batches make one optimizer step; the last step of an epoch may have fewer.
        whole = len(values) if wait else len(values) // size * size
        values, self._untold = values[:whole], values[whole:]
        if size > 1:
            groups = (values[at : at + size] for at in range(0, whole, size))
            values = [math.fsum(group) / len(group) for group in groups]
        steps = range(self._next_step, self._next_step + len(values))
        self._next_step += len(values)
        pieces = [StepSeries("loss", steps, values)] if values else []
        for name, at, recorded in self._scalars.take(wait=wait):
            pieces.append(_by_step(name, at, recorded))
            self._newest[name] = recorded[-1]
        if self.step_values is not None:
            taken = self.step_values.take(self._next_step - 1, wait=wait)
            # A value that the program records itself under the same name is kept.
            pieces += [StepSeries(*one) for one in taken if one[0] not in self._newest]
        if self._monitor is not None and pieces:
            self._monitor.log_steps(pieces)

    def _tell_pause(self, seconds: float | None) -> None:
        """Report that a pause begins, or that it has ended after so many seconds."""
        if seconds is not None:
            self.progress.skip(seconds)
        now = self._clock()
        self._tell_progress(self._done, now, "paused" if seconds is None else "training")

    def _tell_progress(self, done: int | None, now: float, phase: Phase = "training") -> None:
        self._done = done
        if self._monitor is None:
            return
        progress = self.progress
        rate, eta = progress.speed(done, now) if done is not None else (None, None)
        self._monitor.log_progress(
            progress.epoch, done or 0, progress.steps, rate=rate, eta=eta, phase=phase
        )
        self._monitor.log_ledger(self._ledger.seconds())

    def _tell_time(self) -> None:
        if log.enabled(log.Verbosity.VERBOSE):
            for line in self._ledger.table().splitlines():
                log.verbose(f"  {line}")
            return
        spent = sorted(self._ledger.seconds().items(), key=lambda item: -item[1])
        total = self._ledger.total
        line = "  time:"
        for name, part in spent:
            if not part >= 0.01 * total > 0:
                break
            gap = " " if line.endswith(":") else "  "
            longer = f"{line}{gap}{name} {part / total:.0%}"
            if len(longer) > 80:
                break
            line = longer
        if not line.endswith(":"):
            log.msg(line)


@contextmanager
def reported(
    plan: TrainingPlan, ledger: TimeLedger, history: Sequence[EpochMetrics]
) -> Iterator[Reporter]:
    """Report a training inside the context; its end is reported however it ends.

    Args:
        plan: What to train, and where it is recorded.
        ledger: The time ledger.
        history: The metrics of the complete epochs, which the training extends.
    """
    reporter = Reporter(plan, monitor_of(plan), ledger, history=history)
    try:
        reporter.progress.open()
        yield reporter
    except BaseException as error:
        reporter.finish(end_state(error), history, error)
        raise
    reporter.finish("complete", history, None)


def monitor_of(plan: TrainingPlan) -> Monitor | None:
    """Return the monitor of a plan, or a new one if something is to be recorded or shown."""
    wanted = plan.run_dir is not None or plan.live is not None or plan.sinks
    if plan.monitor is not None or not wanted:
        return plan.monitor
    return Monitor(plan.num_epochs, terminal=plan.run_dir is None or plan.run_dir.writes)


def _style(plan: TrainingPlan, monitor: Monitor | None) -> Style:
    if plan.progress is False:
        return "none"
    style = style_of(sys.stdout)
    # Without a monitor no epochs are printed, so show progress only on a terminal.
    return "none" if plan.progress is None and monitor is None and style == "lines" else style


def _by_step(name: str, steps: list[int], values: list[float]) -> StepSeries:
    """Return one value per step: the mean of the values recorded in it."""
    sums: dict[int, tuple[float, int]] = {}
    for step, value in zip(steps, values, strict=True):
        total, count = sums.get(step, (0.0, 0))
        sums[step] = total + value, count + 1
    return StepSeries(name, list(sums), [total / count for total, count in sums.values()])


def _finish_run(plan: Any, state: EndState, epochs: int, error: BaseException | None) -> None:
    try:
        plan.run_dir.finish(state, epochs=epochs, error=error)
    except FlodlError as failure:
        # The end of the training itself is more important to the caller.
        log.warning(str(failure))


LONG_SECONDS = 300.0
"""A training whose steps take longer counts as long."""

_STEPS = (Account.FORWARD, Account.BACKWARD, Account.OPTIMIZER, Account.SYNC)
_OFF = ("", "0", "false")


def name_faster_engine(plan: TrainingPlan, ledger: TimeLedger) -> None:
    """Name the engine ``auto`` after a long training with the default; once in a project.

    Nothing is said to a quiet program, in CI, or if no file can remember that it was said.
    """
    spent = ledger.seconds()
    seconds = sum(spent.get(account.value, 0.0) for account in _STEPS)
    if plan.engine != "eager" or plan.deterministic or plan.sharded or seconds < LONG_SECONDS:
        return
    if plan.most_steps is not None or not is_first_rank() or not log.enabled(log.Verbosity.NORMAL):
        return
    if os.environ.get("CI", "").lower() not in _OFF or was_told() or not remember_told():
        return
    log.msg(
        f"  the steps took {format_duration(seconds)}; --engine auto may be faster, equal up to "
        "rounding: see docs/tutorials/training-more.md"
    )


# --- The time after a training, booked until its process ends --------------------------------

_ended: tuple[int, TimeLedger, Monitor] | None = None
"""Process, ledger and monitor of the last training that has ended."""


def _book_until_exit(ledger: TimeLedger, monitor: Monitor) -> None:
    """Book all time from now on to ``shutdown``, and renew the report when the process ends.

    Only the last training of a process counts, because the time before another one belongs to the
    program. In an interactive session the user decides when the process ends, so nothing is booked.
    """
    global _ended
    if hasattr(sys, "ps1"):
        return
    _ended = os.getpid(), ledger, monitor


def _forget_ended() -> None:
    """Book nothing more to the training that ended last: another one begins."""
    global _ended
    _ended = None


def _book_shutdown() -> None:
    # A forked child has a copy of the training, whose time is not its own.
    if _ended is not None and _ended[0] == os.getpid():
        _, ledger, monitor = _ended
        with undisturbed():
            ledger.lap(Account.SHUTDOWN)
            monitor.amend_ledger(ledger.seconds())


atexit.register(_book_shutdown)
