"""The loop of a training: the same for one process, for many ranks, and for a sharded model.

A :class:`~flodl.train.policies.feed.Feed` says which batches come next and what the ranks exchange
after them; :class:`~flodl.train.steps.Steps` trains them. Everything else is here: where a training
begins, what an epoch is, what is due at its end, and how a training stops.
"""

from __future__ import annotations

import os
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, final

from flodl import log
from flodl.checkpoint.generators import set_generator_states
from flodl.data.draws import seed_program
from flodl.data.seeds import own_seed
from flodl.errors import DivergedError
from flodl.monitor.ledger import Account, TimeLedger
from flodl.ranks.clocks import BatchTimer
from flodl.ranks.group import Group, group_of_all, host_name
from flodl.ranks.launch.launcher import detect, mark_begun
from flodl.ranks.planning.scheduler import initial_schedule
from flodl.ranks.settings import Policy
from flodl.train.callbacks import Hooks, TrainingRun, Worker
from flodl.train.epoch_metrics import EpochLogs
from flodl.train.epochs import Epochs
from flodl.train.guarding import Guarding
from flodl.train.in_order import InOrder
from flodl.train.metrics import recording_into
from flodl.train.observers import Marks, observers_of
from flodl.train.observers.checkpoints import non_finite_parameters
from flodl.train.observers.guards.guard import Setback, tell_callbacks
from flodl.train.observers.rank_checkpoints import RankCheckpoints
from flodl.train.observers.requests import BetweenSteps, StopRequests, end_launcher
from flodl.train.observers.steering import Steering
from flodl.train.observers.step_trace import StepTrace
from flodl.train.parts import CountedRate, engine_of_plan
from flodl.train.policies.choice import feed_of
from flodl.train.policies.feed import Exchanged, FeedParts, SharedGradient
from flodl.train.policies.in_order import InOrderFeed
from flodl.train.run.rank_state import begin
from flodl.train.run.resume import Start, undone
from flodl.train.settings import TrainingPlan
from flodl.train.step.learning_rate import set_rates
from flodl.train.step.precision import FirstBatch
from flodl.train.steps import DueTimes, Steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flodl.monitor import EpochMetrics
    from flodl.ranks.planning.schedule import ScheduleConfig
    from flodl.train.observers.reporting import Reporter
    from flodl.train.parts import Assembly
    from flodl.train.policies.feed import Feed, FeedWindow


@final
class Loop:
    """A training, as one process takes part in it.

    Args:
        plan: What to train.
        group: The ranks.
        config: How windows are planned; None for a process that trains every batch in order.
        parts: Model, optimizer, loader and the rest.
        reporter: Shows and records progress; on rank 0.
        ledger: The time ledger.
        history: Receives the metrics of every epoch.

    Attributes:
        feed: The order of the batches, and the exchanges.
        steps: Takes the steps.
        guarding: Judges the losses, and takes all ranks back after a setback.
        epochs: Begins and ends epochs.
        hooks: The callbacks of the program.
        observers: What flodl itself does at the same moments, after them.
        checkpoints: Writes the state of all ranks, their samples and the trace, and the best model.
        peers: The processes that act after the same step: ranks, or those of a sharded model.
    """

    feed: Feed[Any]
    steps: Steps
    guarding: Guarding
    epochs: Epochs
    observers: Hooks

    def __init__(
        self,
        plan: TrainingPlan,
        group: Group,
        config: ScheduleConfig | None,
        parts: Assembly,
        reporter: Reporter,
        ledger: TimeLedger,
        history: list[EpochMetrics],
    ) -> None:
        self.plan, self.group, self.config, self.parts = plan, group, config, parts
        self.model, self.history = parts.model, history
        self.ledger, self.reporter = ledger, reporter
        self.marks, self.hooks = Marks(plan.timeline), Hooks(plan.callbacks)
        self.run = TrainingRun(parts.model, parts.optimizer, group.device, plan.num_epochs, history)
        self._worker = Worker(
            parts.model, parts.optimizer, group.device, group.rank, group.world_size
        )
        self.checkpoints = RankCheckpoints(plan, group, parts, config)
        self.peers = group_of_all(self.checkpoints.keeper.sharing) or group
        self._due = DueTimes(
            plan.checkpoint_steps,
            every_step=self.hooks.watches_steps or self.peers.world_size > 1,
            last_step=plan.most_steps,
        )
        self._planned = None
        if config is not None:
            speeds = plan.distributed.relative_speeds(config.world_size)
            self._planned = config, initial_schedule(config, speeds)
        # Before the resume, in which epoch_fn may set a schedule.
        counts = self._planned[1].elche.counts if self._planned else (1,)
        self.rate = CountedRate(plan, parts, counts)
        self._worker.steer(self.rate.steered)
        self.steering = Steering(
            plan.live_settings, plan.run_dir, parts.optimizer, parts.torch_schedule,
            self.rate.steered, self._due.wake,
        )  # fmt: skip
        self.stops = StopRequests(self.run, self.steering.mailbox, self._due.wake)
        self.start = Start()
        self._built = len(parts.optimizer.param_groups)
        self._in_order: InOrder | None = None
        self._has_steps = False
        self._tell_step = lambda: self.observers.call("on_step_end", self.run)

    # --- The whole training --------------------------------------------------------------------

    def train(self) -> None:
        """Prepare, train window after window, end; collective."""
        self._prepare()
        with self._at_work():
            while self.feed.complete < self.plan.num_epochs and not self.stops.agreed:
                self._train_to_barrier()
                self._stop_if_requested()
                if self.feed.at_barrier or self.stops.agreed:
                    self._pass_barrier()
        self._end()

    def _prepare(self) -> None:
        """Start from the beginning or from a checkpoint; collective."""
        plan, group, parts, config = self.plan, self.group, self.parts, self.config
        # Not the device number: some launchers show each process a single device, number 0.
        label = f"{host_name()}/{group.device.type}/{group.local_rank}"
        alone = config is None and group.world_size == 1
        found = begin(
            plan, parts, group, self._planned, label=label, before_epoch=self._prepare_epoch,
            state=lambda file: self.feed.write_state(file),  # noqa: PLW0108 - it is made later
        )  # fmt: skip
        start, counts, step_values = found.start, found.counts, self.reporter.step_values
        self.start, self._seconds = start, counts.seconds
        self.history.extend(start.state.history)
        if found.continues:
            self.rate.restore(counts.rate)
            self.ledger.load(start.state.ledger)
        ms, speed = plan.distributed.simulated(group.rank)
        timer = BatchTimer(group.device, batch_ms=ms, speed=speed)
        gradient = None
        if plan.distributed.policy is Policy.SYNC and not alone:
            gradient = SharedGradient(plan, parts, group, timer, self.stops, self.marks)
        engine = engine_of_plan(
            plan, parts, self.rate.steered, done=counts.steps, ledger=self.ledger,
            values=step_values, reduce=gradient,
            after_step=self._tell_step if parts.average is not None else None,
        )  # fmt: skip
        if start.last_rates:
            set_rates(parts.optimizer, start.last_rates)
        if start.state.engine:
            engine.adopt(start.state.engine)
        logs = EpochLogs(engine, group.device, weighted=gradient is not None or config is not None)
        run = self.run
        run.global_step, run.epoch, run.step = counts.steps, counts.epoch, counts.step
        if found.continues:
            logs.load(found.logs)
            self.steering.restore(start.state.acts, counts.steps, start.source)
        begins = group.leads and counts.local_step == start.position.step == 0
        self.checkpoints.begin(found, label)
        trace = StepTrace.begin(plan, parts.batches, group, after=counts.steps, source=start.source)
        if trace is not None:
            logs.record_losses(trace.take_losses)
            trace.take_norms_of(step_values)
        self.reporter.introduce(run, engine, start.state.records, self.steering)
        if start.generators is None and not alone:
            seed_program(own_seed(plan.seed, group.stream))
        self.steps = Steps(
            plan=plan, parts=parts, engine=engine, logs=logs, run=run, hooks=self.hooks,
            reporter=self.reporter, leads=group.leads, marks=self.marks,
            samples=self.checkpoints.samples, trace=trace, after_first=self.checkpoints.check,
            ledger=self.ledger, rate=self.rate, timer=timer,
            due=self._due, gradient=gradient, local_step=counts.local_step,
            first_batch=FirstBatch(
                plan.precision, plan.train_fn, begins=begins and not self.history
            ),
        )  # fmt: skip
        self.feed = feed_of(
            FeedParts(
                plan=plan, group=group, parts=parts, config=config, found=found, gradient=gradient,
                marks=self.marks,
            )
        )  # fmt: skip
        self._has_steps = True
        if start.source is not None:
            mark_begun()
        self._attend()

    def _attend(self) -> None:
        """Make what attends to the steps: guards, observers and epochs."""
        group, start, feed, steps = self.group, self.start, self.feed, self.steps
        self.guarding = Guarding(group, start, feed, steps)
        self.checkpoints.attend(feed, steps, self.guarding, self.steering, self.history)
        watching = observers_of(self.plan, self.parts, self.checkpoints, self.marks, self.reporter)
        self.observers = Hooks(watching)
        self.epochs = Epochs(
            group, self.peers, feed, steps, self.checkpoints, self.guarding, self.stops,
            self.observers, self.history, self._prepare_epoch, self._worker,
        )  # fmt: skip
        if self.plan.distributed.elastic:
            feed.attend(self.checkpoints.membership(self.observers))
        if isinstance(feed, InOrderFeed):
            peers = None if self.peers is self.group else self.peers
            seconds = self._seconds
            self._in_order = InOrder(feed, steps, self.guarding, self.stops, peers, seconds)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Handle signals and recorded scalars while batches are trained."""
        self.ledger.lap(Account.SETUP)
        # Not earlier: while data loads, no step could end, so nothing would honour a request.
        with self.stops.interrupt, recording_into(self.steps.logs):
            self.steering.open()
            launched = detect(os.environ)
            if launched is not None and launched.restart:
                self.marks("restart", count=launched.restart)
            self.hooks.call("on_train_start", self.run)
            if self.start.position.step and self.hooks.has("on_epoch_start"):
                with undone(self.parts.parts({}), self._built):
                    self.hooks.call("on_epoch_start", self.run)
            if self.start.generators is not None:  # draws since the resume have no effect
                set_generator_states(self.start.generators)
            self.stops.agree(self.peers.gather_objects(self.run.stopped))
            self.steps.logs.restart_clock()
            yield

    def _end(self) -> None:
        """Write the trained model; collective."""
        epochs = len(self.history)
        if self.run.stopped is not None and epochs < self.plan.num_epochs:
            log.msg(f"  stopped after epoch {epochs}: {self.run.stopped}")
        if self.feed.schedule is not None:
            self.checkpoints.append_samples(self.feed.schedule.position)
        if (trace := self.steps.trace) is not None:
            trace.finish(self.model, self.steps.engine.global_step)
        self.checkpoints.save_final()
        self.hooks.call("on_train_end", self.run)

    def close(self) -> None:
        """Release the engine, the loader and the files."""
        self.steering.close()
        if self._has_steps:
            self.feed.close()
            self.reporter.tell_facts()
            if self.steps.trace is not None:
                self.steps.trace.end(self.steps.logs.current)
            self.steps.engine.close()
        self.checkpoints.keeper.finish()
        self.parts.batches.close()
        if self.peers is not self.group:
            self.peers.close()
        self.ledger.lap(Account.LOGGING)

    # --- Windows -------------------------------------------------------------------------------

    def _train_to_barrier(self) -> None:
        """Train window after window until all ranks have the same model at the end of an epoch.

        If a rank was asked to stop, this returns earlier: on all ranks after the same window.
        """
        self.steps.timer.begin()
        window = self._open()
        while window is not None:
            try:
                following = self._next(window)
            except (Setback, DivergedError) as problem:
                self._go_back(problem, window)
                following = self._open()
            window = following

    def _open(self) -> FeedWindow | None:
        """Open the next window; the epochs that it reaches into begin.

        Returns:
            The window; None before a barrier. With guards also None before an epoch begins beside
            an open window, because a training never goes back past the start of an epoch.
        """
        feed, alone = self.feed, self.feed.alone
        if alone:
            self.guarding.pass_left_out()
            self.epochs.complete(Exchanged())
        window: FeedWindow | None = feed.open()
        begins = window is not None and self.epochs.begun <= window.last_epoch
        if window is None or (begins and not alone and self.guarding.guard is not None):
            return None
        self._begin(window)
        if alone and self.guarding.guard is not None:
            self.guarding.ready(self.guarding.guard, begins=begins)
        feed.enter(window)
        return window

    def _begin(self, window: FeedWindow) -> None:
        """Begin the epochs that a window reaches into."""
        if self.feed.mixes:
            self.rate.follow(self.feed.counts()[1])
        self.epochs.begin(window.last_epoch)

    def _next(self, window: FeedWindow) -> FeedWindow | None:
        """Train a window, exchange, do what is due, and open the next one.

        Raises:
            Setback: A guard found a bad loss; on all ranks.
            DivergedError: A loss or a parameter is not finite; on all ranks.
        """
        feed = self.feed
        self._train(window)
        while feed.extend(window, lambda: self.stops.interrupt.requested):
            self._begin(window)
            self._train(window)
        self._land()
        if feed.overlaps and not self._needs_one_model():
            following = self._open()
            if following is not None:
                feed.start(window, self.stops.wishes())
                self.ledger.lap(Account.SYNC)
                if not feed.may_lag:
                    self._land()
                return following
        if not feed.in_order:  # its steps have done it
            self._look_before_exchange()
        self._take(feed.exchange(window, self.stops.wishes()))
        return None if self._stops_after_acts() else self._open()

    def _train(self, window: FeedWindow) -> None:
        """Train what this process has of a window: fetch, step, notify."""
        feed, steps = self.feed, self.steps
        if self._in_order is not None:
            self._in_order.train()
            return
        if feed.measured:
            steps.timer.begin()
        trained = False
        with closing(feed.parts(window)) as parts:
            for part in parts:
                trained = True
                ms = steps.train(part)
                if feed.is_due():
                    self._land()
                if feed.ends(window, part, ms):
                    break
        feed.ended(window, steps.timer.catch_up() if feed.measured else 0.0)
        if not trained and steps.gradient is not None:
            steps.follow(window.position)

    def _land(self) -> None:
        """Wait for the exchange that is under way, and apply it."""
        if not self.feed.is_under_way:
            return
        self.feed.apply()
        self.guarding.look(certain=True)
        exchanged = self.feed.landed()
        self.steps.timer.begin()
        self._take(exchanged)

    def _take(self, exchanged: Exchanged) -> None:
        """Take in what an exchange has brought."""
        if not self.feed.in_order:
            self.ledger.lap(Account.SYNC)
        if exchanged.wishes:
            self.stops.heed(exchanged.wishes)
        self.guarding.pass_left_out()
        self.epochs.complete(exchanged)

    def _needs_one_model(self) -> bool:
        """Whether something is due for which the ranks must have the same model."""
        stops, step = self.stops, self.steps.engine.global_step
        return bool(stops or stops.acts) or self.feed.checkpoint_due(step) or self.guarding.is_due()

    def _stops_after_acts(self) -> bool:
        """Act, and save a checkpoint, if that is due; return whether the training pauses here."""
        feed, stops = self.feed, self.stops
        due = feed.checkpoint_due(self.steps.engine.global_step)
        if stops or due or stops.acts:
            self.epochs.settle()
        if stops.acts and not (feed.in_order and feed.complete == self.plan.num_epochs):
            self._act()
        if stops.interrupted_by is not None or (stops.agreed and not feed.in_order):
            return True
        if due:
            self.checkpoints.save()
        return False

    # --- Going back ----------------------------------------------------------------------------

    def _look_before_exchange(self) -> None:
        """Judge what all ranks have trained, before an average mixes it."""
        feed, guarding = self.feed, self.guarding
        if not feed.mixes:
            guarding.pass_left_out()
        certain = feed.mixes or feed.complete > self.epochs.ended or bool(self.stops)
        certain = certain or feed.checkpoint_due(self.steps.engine.global_step)
        if certain or guarding.is_due():
            guarding.look(certain=certain)

    def _go_back(self, problem: Setback | DivergedError, window: FeedWindow) -> None:
        """Continue from an earlier state, on all ranks.

        Raises:
            DivergedError: There is no guard, or there were too many attempts; on all ranks.
        """
        rewind = self.guarding.go_back(problem, window)
        if isinstance(rewind, Setback):
            raise self._farewell(rewind) from None
        if self._in_order is not None:
            self._in_order.seconds = self.steps.logs.seconds
        tell_callbacks(self.hooks, self.run, rewind)
        self.ledger.lap(Account.CHECKPOINT)

    def _farewell(self, setback: Setback) -> DivergedError:
        """Go back once more, train up to the bad batch with hooks, and return the error."""
        feed, steps, guard = self.feed, self.steps, self.guarding.guard
        step, where, found = steps.engine.global_step, f"on rank {self.group.rank}", ""
        look = self.guarding.look_back(setback)
        assert guard is not None  # noqa: S101 - a setback is a guard's
        assert look is not None  # noqa: S101
        steps.due.watch_each_step()
        with look.watching(), steps.plainly(), suppress(DivergedError):
            while not found and (window := self._open()) is not None:
                if isinstance(feed, InOrderFeed):
                    where = feed.told_next(steps.engine.global_step)
                feed.untimed(window)
                self._train(window)
                if feed.holds(window, setback.epoch, setback.batch):
                    break
                self._take(feed.exchange(window, self.stops.wishes()))
                found = "".join(self.group.gather_objects(look.found))
        return guard.farewell(setback, step, f"{look.found}, {where}" if look.found else "")

    # --- Between epochs ------------------------------------------------------------------------

    def _prepare_epoch(self, epoch: int) -> None:
        if self.plan.epoch_fn is None:
            return
        self._worker.current_epoch = epoch
        try:
            self.plan.epoch_fn(epoch, self._worker)
        except Exception as error:
            error.add_note(f"in epoch_fn before epoch {epoch} (counted from 0)")
            raise

    def _pass_barrier(self) -> None:
        """Write what is due while all ranks have the same model, then continue; collective."""
        self.observers.call("on_barrier", self.run)
        # Work of rank 0 alone may take long, and the next exchange has a short timeout.
        self.group.barrier()
        self.ledger.lap(Account.CHECKPOINT)
        self.feed.pass_barrier()
        if self._in_order is not None:
            self._in_order.hear_all(self.peers)
            self._stops_after_acts()
            self._stop_if_requested()
        self.steps.logs.restart_clock()

    # --- Acts, checkpoints and the end ---------------------------------------------------------

    def _stop_if_requested(self) -> None:
        """Save a checkpoint and end if a rank was asked to stop; collective.

        Without finite parameters it ends without a new checkpoint.

        Raises:
            KeyboardInterrupt: On Ctrl-C.
            Terminated: On SIGTERM.
        """
        stops = self.stops
        if stops.interrupted_by is None:
            return
        if not non_finite_parameters(self.model):
            self.checkpoints.save()
        message = ""
        if self.peers.leads:
            kept = self.checkpoints.keeper.whereabouts()
            message = f"stopped after {self.feed.told_place()}; {kept}"
        if stops.told:
            end_launcher(self.peers, stops.interrupt)
        stops.leave(message, stops.interrupted_by if self.peers.world_size > 1 else None)

    def _act(self) -> None:
        """Do what people asked for, while all ranks have the same model; collective."""
        feed, steps, stops = self.feed, self.steps, self.stops
        stops.acts = False
        steps.engine.present()
        if (place := feed.rate_place()) is not None:
            self.rate.steered.position = place
        self.ledger.lap(Account.LOGGING if feed.in_order else Account.SYNC)
        between = BetweenSteps(self.peers, stops, self.checkpoints.save_now)
        paused = self.steering.carry_out(steps.engine.global_step, between)
        self.guarding.forget()  # going back further would undo what was asked for
        if paused:
            self.ledger.lap(Account.IDLE)
            steps.logs.skip_time(paused)
        steps.timer.begin()
        if self.steering.stopping:
            stops.tell()
