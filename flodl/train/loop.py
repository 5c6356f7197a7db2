"""The loop of a training: the same for one process, for many ranks, and for a sharded model.

A :class:`~flodl.train.policies.base.PolicyLoop` decides the order of the batches and when the
ranks average. Everything else is here: where a training begins, what an epoch is, what is due at
its end, and how a training stops.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

import torch

from flodl import log
from flodl.data import IterableLoader
from flodl.monitor.ledger import Account, TimeLedger
from flodl.ranks.group import Group, group_of_all, host_name
from flodl.ranks.launch.begun import mark_begun
from flodl.ranks.launch.launcher import detect
from flodl.train.callbacks import Hooks, TrainingRun
from flodl.train.due_times import DueTimes
from flodl.train.epoch_end import call_back, evaluate, model_metrics
from flodl.train.epoch_metrics import EpochLogs, EpochShare, device_name, epoch_metrics
from flodl.train.metrics import recording_into
from flodl.train.observers.checkpoints import non_finite_parameters, require_finite
from flodl.train.observers.epoch_observers import observers_of
from flodl.train.observers.rank_acts import BetweenSteps, end_launcher
from flodl.train.observers.rank_checkpoints import RankCheckpoints
from flodl.train.observers.steering import Steering
from flodl.train.observers.stop_requests import StopRequests
from flodl.train.plan import TrainingPlan, Worker
from flodl.train.rank_parts import CountedRate, rank_seed, timer_of_rank
from flodl.train.run.loop_state import LoopState, UnfinishedEpoch
from flodl.train.run.rank_state import RankCounts, begin, begin_in_order
from flodl.train.run.resume import Start, undone
from flodl.train.step.engine_of_plan import engine_of_plan
from flodl.train.step.precision import FirstBatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flodl.monitor import EpochMetrics
    from flodl.ranks.planning.schedule import ScheduleConfig, ScheduleState
    from flodl.train.observers.reporting import Reporter
    from flodl.train.parts import Assembly
    from flodl.train.policies.base import PolicyLoop
    from flodl.train.policies.sync import SharedGradient
    from flodl.train.step.base import StepEngine


@final
class Loop:
    """A training, as one process takes part in it.

    Args:
        plan: What to train.
        group: The ranks.
        config: How windows are planned, the same on all ranks; None for a process that trains every
            batch in order.
        parts: Model, optimizer, loader and the rest.
        reporter: Shows and records progress; on rank 0.
        ledger: The time ledger.
        history: Receives the metrics of every epoch.
        gradient: Averages the gradients of a step over the ranks, with policy SYNC.

    Attributes:
        schedule: The current state of the plan of many ranks; the policies advance it.
        engine: Takes the steps.
        logs: The measurements of the unfinished epochs.
        policy: The order of the batches.
        hooks: The callbacks of the program.
        observers: What flodl itself does at the beginning and the end of an epoch, after them.
        checkpoints: Writes the state of all ranks, their samples and the trace.
        local_step: Batches that this rank has trained.
        peers: The processes that act after the same step: the ranks, or those that share a sharded
            model.
        told: The last epoch that the reporter has begun; -1 before the first.
        saved_at: Batches of all ranks that were trained when the newest checkpoint was saved.
        versions: Number of averages taken.
        aborts: Number of averages skipped.
    """

    config: ScheduleConfig
    schedule: ScheduleState
    engine: StepEngine
    logs: EpochLogs
    policy: PolicyLoop

    def __init__(
        self,
        plan: TrainingPlan,
        group: Group,
        config: ScheduleConfig | None,
        parts: Assembly,
        reporter: Reporter,
        ledger: TimeLedger,
        history: list[EpochMetrics],
        *,
        gradient: SharedGradient | None = None,
    ) -> None:
        self.plan, self.group, self.parts = plan, group, parts
        self.in_order = config is None
        counts: tuple[int, ...] = (1,)
        if config is not None:
            self.config = config
            self._fresh, counts = first_schedule(plan, config)
        self.model = parts.model
        self.history, self.ledger, self.reporter = history, ledger, reporter
        self.versions = self.aborts = 0
        self.gradient = gradient
        self.local_step = self.saved_at = 0
        self.told = -1
        self._comm_ms = self._wait_ms = 0.0
        self._built = len(parts.optimizer.param_groups)
        self.hooks = Hooks(plan.callbacks)
        self.observers = Hooks(observers_of(plan, parts, reporter))
        self.run = TrainingRun(parts.model, parts.optimizer, group.device, plan.num_epochs, history)
        self._worker = Worker(
            parts.model, parts.optimizer, group.device, group.rank, group.world_size
        )
        self.checkpoints = RankCheckpoints(plan, group, parts, config)
        self.peers = group_of_all(self.checkpoints.sharing) or group
        self.due = DueTimes(
            plan.checkpoint_steps,
            every_step=self.hooks.watches_steps or self.peers.world_size > 1,
            last_step=plan.most_steps,
        )
        self.scaler = parts.counted_scaler()
        # Before the resume, in which epoch_fn may set a schedule.
        self.rate = CountedRate(plan, parts, counts)
        self._worker.steer(self.rate.steered)
        self.timer = timer_of_rank(plan, group)
        self.steering = Steering(plan, parts, self.rate.steered, self.due.wake)
        self.stops = StopRequests(self.run, self.steering.mailbox, self.due.wake)
        self.start = Start()
        self._has_begun = False

    @property
    def shared(self) -> bool:
        """Whether other processes hold parts of the model (FSDP), and act after the same step."""
        return self.peers is not self.group

    # --- The whole training --------------------------------------------------------------------

    def begin(self) -> dict[str, Any]:
        """Start from the beginning or from a checkpoint; collective.

        Returns:
            State of the outer optimizer; empty if no checkpoint has one.
        """
        plan, group, parts = self.plan, self.group, self.parts
        # Not the device number: some launchers show each process a single device, number 0.
        label = f"{host_name()}/{group.device.type}/{group.local_rank}"
        if self.in_order and group.world_size == 1:
            found = begin_in_order(plan, parts, self._prepare_epoch)
        else:
            found = begin(
                plan,
                parts,
                group,
                None if self.in_order else (self.config, self._fresh),
                label=label,
                before_epoch=self._prepare_epoch,
            )
        start, counts = found.start, found.counts
        self.start = start
        self.local_step, self.versions = counts.local_step, counts.averages
        self.rate.restore(counts.rate)
        self.history.extend(start.state.history)
        self.ledger.load(start.state.ledger)
        self.engine = engine_of_plan(
            plan, parts, self.rate.steered, done=counts.steps, scaler=self.scaler,
            ledger=self.ledger, values=self.reporter.step_values, reduce=self.gradient,
        )  # fmt: skip
        self.engine.adopt(start.state.engine)
        self.logs = EpochLogs(
            self.engine, group.device, weighted=self.gradient is not None or not self.in_order
        )
        self.logs.load(found.logs)
        self.run.global_step = counts.steps
        self.run.epoch, self.run.step = counts.epoch, counts.step
        self.steering.restore(start.state.acts, counts.steps, start.source)
        begins = group.leads and self.local_step == start.position.step == 0
        self.first_batch = FirstBatch(plan, begins=begins and not self.history)
        self.checkpoints.begin(found, label)
        self.logs.record_losses(self.checkpoints.trace.loss_sink())
        self.checkpoints.trace.take_norms_of(self.reporter.step_values)
        self.reporter.introduce(
            self.model, parts.optimizer, self.engine.report(), start.state.records
        )
        self.reporter.follow(self.run, self.engine)
        self.reporter.steer(self.steering)
        if start.generators is None and not (self.in_order and group.world_size == 1):
            torch.manual_seed(rank_seed(plan.seed, group.rank))
        if found.schedule is not None:
            self.schedule = found.schedule
            self.saved_at = found.schedule.position
        if start.source is not None:
            mark_begun()
        self._has_begun = True
        return found.outer

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Handle signals and recorded scalars while batches are trained."""
        # Not earlier: while data loads, no step could end, so nothing would honour a request.
        with self.stops.interrupt, recording_into(self.logs):
            self.steering.open()
            self.tell_restart()
            self.hooks.call("on_train_start", self.run)
            if self.start.position.step and self.hooks.has("on_epoch_start"):
                with undone(self.parts.parts({}), self._built):
                    self.hooks.call("on_epoch_start", self.run)
            self.start.rewind_generators()
            self.stops.agree(self.peers.gather_objects(self.run.stopped))
            self.logs.restart_clock()
            yield

    def tell_restart(self) -> None:
        """Mark a restart in the timeline if the launcher has restarted the ranks."""
        launched = detect(os.environ)
        if launched is not None and launched.restart:
            self.mark("restart", count=launched.restart)

    @property
    def ended(self) -> bool:
        """Whether all epochs are complete, or the ranks agreed to stop."""
        return self.policy.place().epoch >= self.plan.num_epochs or self.stops.agreed

    def end(self) -> None:
        """Write the trained model; collective."""
        epochs = len(self.history)
        if self.run.stopped is not None and epochs < self.plan.num_epochs:
            log.msg(f"  stopped after epoch {epochs}: {self.run.stopped}")
        if not self.in_order:
            self.checkpoints.append_samples(self.schedule.position)
        self.checkpoints.trace.finish(self.model, self.engine.global_step)
        self.checkpoints.save_final(self.history)
        self.hooks.call("on_train_end", self.run)

    def close(self) -> None:
        """Release the engine, the loader and the files."""
        self.steering.close()
        if self._has_begun:
            self.reporter.tell_facts(self.engine.report())
            self.checkpoints.end_trace(self.logs)
            self.engine.close()
        self.checkpoints.close()
        self.parts.batches.close()
        if self.shared:
            self.peers.close()
        self.ledger.lap(Account.LOGGING)

    def to_resume(self) -> Path | None:
        """Return the checkpoint to continue from; on rank 0."""
        return self.checkpoints.to_resume(self.start.source)

    def whereabouts(self) -> str:
        """Describe where the last good checkpoint is."""
        return self.checkpoints.whereabouts()

    # --- Batches -------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch: the program prepares it, and callbacks learn of it."""
        self.run.epoch, self.run.step = epoch, 0
        self._prepare_epoch(epoch)
        self.hooks.call("on_epoch_start", self.run)
        self.observers.call("on_epoch_start", self.run)

    def set_busy(self, busy: bool) -> None:
        """Record in the timeline whether this rank computes."""
        timeline = self.plan.timeline
        if timeline is not None:
            (timeline.busy.begin if busy else timeline.busy.end)()

    def book(self, account: Account) -> None:
        """Book the time since the last booking to an account of the time ledger."""
        self.ledger.lap(account)

    def spent(self, comm_ms: float, wait_ms: float) -> None:
        """Add the cost of an exchange and this rank's waiting time to the epoch's metrics."""
        self._comm_ms += comm_ms
        self._wait_ms += wait_ms

    def end_step(self) -> None:
        """Call the hooks after an optimizer step."""
        run, known = self.run, self.logs.current
        self.checkpoints.check_once()
        mark_begun()
        run.global_step = self.engine.global_step
        if self.hooks.watches_steps:
            if known is not None:
                run.loss = known.losses.latest
            self.hooks.call("on_step_end", run)
        self.stop_at_last_step()

    def stop_at_last_step(self) -> None:
        """Ask for the end after the last step of a training that was to take only some."""
        if self.due.is_over(self.engine.global_step):
            self.run.stop(f"only {self.engine.global_step} steps were asked for")

    def _prepare_epoch(self, epoch: int) -> None:
        if self.plan.epoch_fn is None:
            return
        worker = self._worker
        worker.current_epoch, worker.current_version = epoch, self.versions
        worker.local_step = self.run.global_step if self.in_order else self.local_step
        try:
            self.plan.epoch_fn(epoch, worker)
        except Exception as error:
            error.add_note(f"in epoch_fn before epoch {epoch} (counted from 0)")
            raise

    def mark(self, kind: str, **fields: object) -> None:
        """Record an event in the timeline, if there is one."""
        if self.plan.timeline is not None:
            self.plan.timeline.event(kind, **fields)

    # --- The end of an epoch -------------------------------------------------------------------

    def complete_epoch(self, epoch: int, *, averaged: bool) -> None:
        """Combine the measurements of an epoch, evaluate and report; collective.

        Args:
            epoch: An epoch of which the ranks have trained every batch.
            averaged: Whether the model is the average of all ranks now, so that it is evaluated.
        """
        group = self.group
        self.checkpoints.trace.end_epoch(self.engine.global_step)
        self.ledger.lap(Account.LOGGING)
        if group.leads and self.told == epoch:
            self.reporter.end_steps()
        known, epoch_ms = self.logs.take(epoch)
        known.comm_ms, known.wait_ms = self._comm_ms, self._wait_ms
        self._comm_ms = self._wait_ms = 0.0
        shares = group.gather_objects(
            EpochShare(
                state=known.state(),
                device=device_name(group.device, group.rank),
                epoch_ms=epoch_ms,
                metrics=model_metrics(self.model),
            )
        )
        self.ledger.lap(Account.SYNC)
        anchor, counts = self.policy.windows()
        metrics = epoch_metrics(
            epoch,
            shares,
            anchor=anchor,
            counts=counts,
            lr=self._worker.current_lr,
            evaluated=self._evaluated(epoch) if averaged else {},
        )
        self.ledger.lap(Account.EVALUATION)
        self.hooks.call("on_epoch_end", self.run, metrics)
        self.history.append(metrics)
        if not self.in_order:
            self.checkpoints.append_samples(self.schedule.position)
        if averaged:
            self.checkpoints.keep_best(self.policy.place().global_step, self.history)
            self.ledger.lap(Account.CHECKPOINT)
        self.observers.call("on_epoch_end", self.run, metrics)
        self.ledger.lap(Account.LOGGING)
        self.stops.agree(self.peers.gather_objects(self.run.stopped))
        self.logs.restart_clock()
        self.checkpoints.trace.resume_clock(self.engine.global_step)

    def _evaluated(self, epoch: int) -> dict[str, float]:
        """Evaluate on rank 0 and send the result to all ranks."""
        if not self.in_order:
            when = f"after epoch {epoch} (counted from 0)"
            last_step = self.config.batches_per_epoch - 1
            require_finite(self.model, when, epoch=epoch, step=last_step)
        found: dict[str, float] | None = None
        if self.group.leads:
            found = evaluate(self.plan.eval_fn, self.model, self.checkpoints.averaged(), epoch)
        return self.group.broadcast_object(found)

    def barrier(self) -> None:
        """Write what is due while all ranks have the same model, then continue; collective."""
        epochs, plan = self.policy.place().epoch, self.plan
        if epochs % plan.checkpoint_every == 0:
            self.save()
            if plan.checkpoint_fn is not None and epochs:
                call_back("checkpoint_fn", epochs - 1, plan.checkpoint_fn, epochs, self.model)
        # Work of rank 0 alone may take long, and the next exchange has a short timeout.
        self.group.barrier()
        self.ledger.lap(Account.CHECKPOINT)
        self.policy.pass_barrier()
        self.logs.restart_clock()

    def stop_if_requested(self) -> None:
        """Save a checkpoint and end if a rank was asked to stop; collective.

        Without finite parameters it ends without a new checkpoint.

        Raises:
            KeyboardInterrupt: On Ctrl-C.
            Terminated: On SIGTERM.
        """
        if self.stops.interrupted_by is None:
            return
        if not non_finite_parameters(self.model):
            self.save()
        message = ""
        if self.peers.leads:
            message = f"stopped after {self.policy.told_place()}; {self.whereabouts()}"
        if self.stops.told:
            end_launcher(self.peers, self.stops.interrupt)
        own = self.peers.world_size == 1
        self.stops.leave(message, None if own else self.stops.interrupted_by)

    def act(self) -> None:
        """Do what people asked for, while all ranks have the same model; collective."""
        stops, steering = self.stops, self.steering
        if not stops.acts:
            return
        stops.acts = False
        self.policy.set_rate_place()
        self.ledger.lap(Account.LOGGING if self.in_order else Account.SYNC)
        between = BetweenSteps(self.peers, stops, self._save_now)
        paused = steering.carry_out(self.engine.global_step, between)
        self.policy.forget()  # going back further would undo what was asked for
        if paused:
            self.ledger.lap(Account.IDLE)
            self.logs.skip_time(paused)
        self.timer.begin()
        if steering.stopping:
            stops.tell()

    def _save_now(self) -> str:
        """Save a checkpoint; return why that cannot be done now, or an empty text; collective."""
        if self.policy.place().step and isinstance(self.parts.batches, IterableLoader):
            return (
                "data that can only be iterated has no checkpoint inside an epoch; the one at the "
                "end of the epoch is written anyway"
            )
        if self.in_order and self.logs.current is not None:
            self.logs.current.losses.check()
        if bad := non_finite_parameters(self.model):
            return f"parameters are not finite: {', '.join(bad[:3])}"
        self.save()
        return ""

    def save(self) -> None:
        """Save the state of all ranks in the run directory; collective."""
        place = self.policy.place()
        # A state that cannot be resumed must not replace one that can.
        unusable = place.step and isinstance(self.parts.batches, IterableLoader)
        if unusable or (self.in_order and not self.checkpoints.keeps):
            return
        schedule = None if self.in_order else self.schedule
        self.saved_at = schedule.position if schedule is not None else 0
        self.engine.present()
        acts = self.steering.saved()
        counts = RankCounts(
            local_step=self.local_step,
            steps=self.engine.global_step,
            epoch=self.run.epoch,
            step=self.run.step,
            averages=self.versions,
            rate=self.rate.state(),
            asked=acts.get("scheduler", {}),
        )
        state = LoopState(
            history=self.history,
            records=self.reporter.records(),
            unfinished=self._unfinished() if self.in_order and place.step else UnfinishedEpoch(),
            ledger=self.ledger.state_dict(),
            engine=self.engine.decision(),
            acts=acts,
            guard=self.policy.guard_state(),
            scale=self.rate.steered.scale if self.in_order else 1.0,
        )
        written = self.checkpoints.save(state, place, self.logs, counts, schedule)
        if place.step:
            self.policy.forget()
        if written is not None:
            self.hooks.call("on_checkpoint", self.run, written)
        self.ledger.lap(Account.CHECKPOINT)

    def _unfinished(self) -> UnfinishedEpoch:
        known = self.logs.of(self.policy.place().epoch)
        return UnfinishedEpoch(
            losses=known.losses.state(), scalars=known.scalars.state(), seconds=self.logs.seconds
        )


def first_schedule(
    plan: TrainingPlan, config: ScheduleConfig
) -> tuple[ScheduleState, tuple[int, ...]]:
    """Return the schedule at the start of a training, and the batches of each rank per window."""
    from flodl.ranks.planning.scheduler import initial_schedule

    fresh = initial_schedule(config, plan.distributed.relative_speeds(config.world_size))
    return fresh, fresh.elche.counts
