"""The work of one rank: train single batches, keep measurements, end epochs with the others.

A :class:`~flodl.distributed.policies.base.PolicyLoop` drives a :class:`RankWorker`. It decides the
order of the batches and when the ranks average.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

import torch

from flodl.distributed.epoch_metrics import EpochLogs, EpochShare, device_name, epoch_metrics
from flodl.distributed.planning.scheduler import initial_schedule, pass_barrier
from flodl.distributed.planning.spans import Spans, insert
from flodl.distributed.rank_acts import end_launcher
from flodl.distributed.rank_batches import RankBatches
from flodl.distributed.rank_checkpoints import RankCheckpoints
from flodl.distributed.rank_guard import RankGuard
from flodl.distributed.rank_left_out import RankLeftOut, repeated
from flodl.distributed.rank_parts import CountedRate, engine_of_rank, rank_seed, timer_of_rank
from flodl.distributed.rank_state import RankCounts, begin
from flodl.distributed.stop_requests import StopRequests
from flodl.launch.begun import mark_begun
from flodl.launch.group import Group, host_name
from flodl.launch.launcher import detect
from flodl.launch.settings import Policy
from flodl.monitor.ledger import Account, TimeLedger
from flodl.train.callbacks import Hooks, TrainingRun
from flodl.train.checkpoints import non_finite_parameters, require_finite
from flodl.train.epoch_end import call_back, evaluate, model_metrics
from flodl.train.metrics import recording_into
from flodl.train.plan import TrainingPlan, Worker
from flodl.train.precision import FirstBatch
from flodl.train.resume import undone
from flodl.train.steering import Steering

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from flodl.data import Batch
    from flodl.distributed.planning.schedule import (
        ScheduleConfig,
        ScheduleState,
        WindowPlan,
    )
    from flodl.distributed.policies.sync import SharedGradient
    from flodl.monitor import EpochMetrics
    from flodl.train.parts import Assembly
    from flodl.train.reporting import Reporter


@final
class RankWorker:
    """One rank of a training.

    Args:
        plan: What to train.
        group: The ranks.
        config: How windows are planned; the same on all ranks.
        parts: Model, optimizer, loader and the rest.
        reporter: Shows and records progress; on rank 0.
        ledger: The time ledger.
        history: Receives the metrics of every epoch.
        gradient: Averages the gradients of a step over the ranks, with policy SYNC.

    Attributes:
        schedule: The current state of the plan; the policies advance it.
        checkpoints: Writes the state of all ranks, their samples and the trace.
        local_step: Batches that this rank has trained.
        told: The last epoch that the reporter has begun; -1 before the first.
        guard: Takes all ranks back after a setback; None without guards.
        left_out: What guards leave out; None if it is nothing.
        versions: Number of averages taken.
        aborts: Number of averages skipped.
    """

    schedule: ScheduleState

    def __init__(
        self,
        plan: TrainingPlan,
        group: Group,
        config: ScheduleConfig,
        parts: Assembly,
        reporter: Reporter,
        ledger: TimeLedger,
        history: list[EpochMetrics],
        *,
        gradient: SharedGradient | None = None,
    ) -> None:
        self.plan, self.group, self.config, self.parts = plan, group, config, parts
        self.model, self._loader = parts.model, parts.loader
        self.data = RankBatches(parts.loader, config.batches_per_epoch, group.rank)
        self.history, self._ledger, self._reporter = history, ledger, reporter
        self.versions = self.aborts = 0
        self._gradient = gradient
        self.local_step = self._begun = self._saved_at = 0
        self.told = -1
        self._comm_ms = self._wait_ms = 0.0
        self.rate = CountedRate(plan, parts, config)
        self._built = len(parts.optimizer.param_groups)
        self.hooks = Hooks(plan.callbacks)
        self.run = TrainingRun(parts.model, parts.optimizer, group.device, plan.num_epochs, history)
        self._worker = Worker(
            parts.model, parts.optimizer, group.device, group.rank, group.world_size
        )
        self._worker.steer(self.rate.steered)
        self.checkpoints = RankCheckpoints(plan, group, parts, config)
        self.engine = engine_of_rank(
            plan,
            parts,
            self.rate.steered,
            ledger,
            gradient,
            values=reporter.step_values,
        )
        self.rate.steered.drive(self.engine)
        self.logs = EpochLogs(self.engine, on_device=group.device.type != "cpu")
        self.timer = timer_of_rank(plan, group)
        self.steering = Steering(plan, parts, self.rate.steered)
        self.stops = StopRequests(self.run, self.steering.mailbox)
        self.guard: RankGuard | None = None
        self.left_out: RankLeftOut | None = None

    # --- The whole training --------------------------------------------------------------------

    def begin(self) -> dict[str, Any]:
        """Start from the beginning or from a checkpoint; collective.

        Returns:
            State of the outer optimizer; empty if no checkpoint has one.
        """
        plan, group = self.plan, self.group
        # Not the device number: some launchers show each process a single device, number 0.
        label = f"{host_name()}/{group.device.type}/{group.local_rank}"
        found = begin(
            plan,
            self.parts,
            group,
            self.config,
            initial_schedule(self.config, plan.distributed.relative_speeds(group.world_size)),
            self.logs,
            label=label,
            before_epoch=self._prepare_epoch,
        )
        start = self._start = found.start
        counts = found.counts
        self.schedule, self.local_step, self.versions = (
            found.schedule, counts.local_step, counts.averages,
        )  # fmt: skip
        self.rate.restore(counts.rate)
        if start.generators is None:
            torch.manual_seed(rank_seed(plan.seed, group.rank))
        self.history.extend(start.state.history)
        self._ledger.load(start.state.ledger)
        self.engine.adopt(start.state.engine)
        self.engine.global_step = self.run.global_step = counts.steps
        self.run.epoch, self.run.step = counts.epoch, counts.step
        self.steering.restore(start.state.acts, counts.steps, start.source)
        begins = group.leads and self.local_step == start.position.step == 0
        self._first_batch = FirstBatch(plan, begins=begins and not self.history)
        self._begun = self.schedule.complete + (1 if start.position.step else 0)
        self._saved_at = self.schedule.position
        self.checkpoints.begin(found, label)
        self.logs.record_losses(self.checkpoints.trace.loss_sink())
        self.checkpoints.trace.take_norms_of(self._reporter.step_values)
        self._reporter.introduce(
            self.model, self.parts.optimizer, self.engine.report(), start.state.records
        )
        self._reporter.follow(self.run, self.engine)
        self._reporter.steer(self.steering)
        if plan.guards is not None:
            self.guard = RankGuard(plan.guards, self, start)
        self.left_out = self.guard or repeated(self, start)
        if start.source is not None:
            mark_begun()
        return found.outer

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Handle signals and recorded scalars while batches are trained."""
        with self.stops.interrupt, recording_into(self.logs):
            self.steering.open()
            self.tell_restart()
            self.hooks.call("on_train_start", self.run)
            if self._start.position.step and self.hooks.has("on_epoch_start"):
                with undone(self.parts.parts({}), self._built):
                    self.hooks.call("on_epoch_start", self.run)
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
        return self.schedule.complete >= self.plan.num_epochs or self.stops.agreed

    @property
    def at_barrier(self) -> bool:
        """Whether every batch before the barrier is trained, or the ranks agreed to stop."""
        return self.schedule.complete > self.schedule.barrier or self.stops.agreed

    def end(self) -> None:
        """Write the trained model; collective."""
        self.checkpoints.append_samples(self.schedule.position)
        self.checkpoints.trace.finish(self.model)
        self.checkpoints.save_final(self.history)
        self.hooks.call("on_train_end", self.run)

    def close(self) -> None:
        """Release the engine, the loader and the files."""
        self.steering.close()
        self.checkpoints.end_trace(self.logs)
        self.engine.close()
        self.checkpoints.close()
        self._loader.close()
        self._ledger.lap(Account.LOGGING)

    def to_resume(self) -> Path | None:
        """Return the checkpoint to continue from; on rank 0."""
        return self.checkpoints.to_resume(self._start.source)

    def whereabouts(self) -> str:
        """Describe where the last good checkpoint is."""
        return self.checkpoints.whereabouts()

    # --- Batches -------------------------------------------------------------------------------

    def begin_window(self, plan: WindowPlan) -> None:
        """Begin the epochs that a window reaches into, on this rank."""
        self.rate.follow(self.schedule.elche.counts)
        self.begin_epochs(insert((), *plan.leases))

    def begin_epochs(self, spans: Spans) -> None:
        """Begin the epochs up to the last of these batches, on this rank.

        The batches may belong to any rank.
        """
        last = (spans[-1][1] - 1) // self.config.batches_per_epoch
        while self._begun <= last:
            epoch = self._begun
            self._begun += 1
            self.run.epoch, self.run.step = epoch, 0
            self._prepare_epoch(epoch)
            self.hooks.call("on_epoch_start", self.run)
            self.mark("epoch_start", epoch=epoch)
        if self._start.generators is not None:
            self._start.rewind_generators()
            self._start = replace(self._start, generators=None)

    def train(
        self,
        number: int,
        rows: Tensor,
        batch: Batch,
        position: int,
        *,
        skip: int = 0,
        parts: int = 1,
        closes: bool = True,
    ) -> float:
        """Train on one batch.

        Args:
            number: Number of the batch, counted through all epochs.
            rows: Sample numbers of the batch.
            batch: The batch, on the device.
            position: Position in the learning-rate schedule, in batches.
            skip: Samples of the batch that belong to lower ranks.
            parts: As for the ``step`` of a step engine.
            closes: As for the ``step`` of a step engine.

        Returns:
            Milliseconds since the end of the previous batch, without time spent waiting for other
            ranks.
        """
        epoch, within = divmod(number, self.config.batches_per_epoch)
        known, engine, samples = self.logs.of(epoch), self.engine, len(rows)
        self._ledger.lap(Account.DATA)
        if self._first_batch.waits:
            self._first_batch.look(self.model, batch)
            self._ledger.lap(Account.SETUP)
            self.timer.begin()  # the comparison says nothing about the speed of this rank
        self.set_busy(True)
        self._reach(position)
        known.losses.expect(samples)
        trace = self.checkpoints.trace
        if trace.steps >= trace.next_step:
            trace.look(self.model, batch, trace.steps)
        try:
            engine.step(batch, known.losses, parts=parts, closes=closes)
        except Exception as error:
            error.add_note(f"in epoch {epoch}, batch {within} (both counted from 0)")
            raise
        place = within * self._loader.batch_size + skip
        self.checkpoints.samples.trained_samples(epoch, place, position, rows)
        if trace.is_on:
            trace.trained(
                epoch, place, samples, parts=parts, closes=closes, order=self._loader.order
            )
        self.local_step += 1
        known.batches += 1
        known.samples += samples
        self._look_up(epoch, position, closes=closes)
        gradient = self._gradient
        ms = gradient.busy_ms if closes and gradient is not None else self.timer.end_batch()
        known.busy_ms += ms
        self.set_busy(False)
        return ms

    def follow(self, position: int) -> None:
        """Take part in a shared step without a batch on this rank."""
        self._reach(position)
        self.engine.follow()
        self.checkpoints.trace.steps += 1
        self._end_step()

    def _reach(self, position: int) -> None:
        """Set the learning rate for a position; it is the same on every rank."""
        self.rate.steered.position = steps = position // self.plan.accumulate
        if self.parts.torch_schedule is not None:
            self.parts.torch_schedule.advance(steps)

    def set_busy(self, busy: bool) -> None:
        """Record in the timeline whether this rank computes."""
        timeline = self.plan.timeline
        if timeline is not None:
            (timeline.busy.begin if busy else timeline.busy.end)()

    @torch.no_grad()
    def repair_optimizer(self) -> None:
        """Zero the tensors of the optimizer's state that hold values that are not finite."""
        for kept in self.parts.optimizer.state.values():
            for value in kept.values():
                if isinstance(value, torch.Tensor) and not value.isfinite().all():
                    value.zero_()

    def rate_limit(self, position: int) -> int:
        """Limit a position to the last batch, for schedules that know the training's length."""
        return min(position, self.config.epochs * self.config.batches_per_epoch - 1)

    def book(self, account: Account) -> None:
        """Book the time since the last booking to an account of the time ledger."""
        self._ledger.lap(account)

    def spent(self, comm_ms: float, wait_ms: float) -> None:
        """Add the cost of an exchange and this rank's waiting time to the epoch's metrics."""
        self._comm_ms += comm_ms
        self._wait_ms += wait_ms

    def _end_step(self) -> None:
        """Call the hooks after an optimizer step."""
        run, log, most = self.run, self.logs.current, self.plan.most_steps
        mark_begun()
        run.global_step = self.engine.global_step
        if self.hooks.watches_steps:
            if log is not None:
                run.loss = log.losses.latest
            self.hooks.call("on_step_end", run)
        if most is not None and run.global_step >= most:
            run.stop(f"only {most} steps were asked for")

    def _look_up(self, epoch: int, position: int, *, closes: bool) -> None:
        """Call the step hooks and update the progress display."""
        reporter = self._reporter
        self.run.step += 1
        if closes:
            self._end_step()
        if not self.group.leads:
            return
        length = self.config.batches_per_epoch
        if epoch > self.told:
            if self.told >= 0:
                reporter.end_steps()
            self.told = epoch
            known = self.logs.of(epoch)
            reporter.begin_epoch(
                epoch,
                steps=length,
                done=0,
                first_step=self.engine.global_step - closes,
                losses=known.losses,
                scalars=known.scalars,
            )
        elif reporter.is_due:
            reporter.tick(max(0, min(position - epoch * length, length)))

    def _prepare_epoch(self, epoch: int) -> None:
        if self.plan.epoch_fn is None:
            return
        worker = self._worker
        worker.current_epoch, worker.current_version = epoch, self.versions
        worker.local_step = self.local_step
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
        group, elche = self.group, self.schedule.elche
        together = self.config.policy is Policy.SYNC
        self.checkpoints.trace.end_epoch()
        self._ledger.lap(Account.LOGGING)
        if group.leads and self.told == epoch:
            self._reporter.end_steps()
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
        self._ledger.lap(Account.SYNC)
        metrics = epoch_metrics(
            epoch,
            shares,
            anchor=1 if together else elche.anchor,
            counts=(1,) * group.world_size if together else elche.counts,
            lr=self._worker.current_lr,
            evaluated=self._evaluated(epoch) if averaged else {},
        )
        self._ledger.lap(Account.EVALUATION)
        self.hooks.call("on_epoch_end", self.run, metrics)
        self.history.append(metrics)
        if self.parts.torch_schedule is not None:
            self.parts.torch_schedule.end_epoch(metrics)
        self.checkpoints.append_samples(self.schedule.position)
        if averaged:
            self.checkpoints.keep_best(self.schedule, self.history)
        self.mark("epoch_end", epoch=epoch, loss=metrics.avg_loss)
        if group.leads:
            self._report(metrics)
        self.stops.agree(group.gather_objects(self.run.stopped))
        self.logs.restart_clock()
        self.checkpoints.trace.resume_clock()

    def _evaluated(self, epoch: int) -> dict[str, float]:
        """Evaluate on rank 0 and send the result to all ranks."""
        last_step = self.config.batches_per_epoch - 1
        when = f"after epoch {epoch} (counted from 0)"
        require_finite(self.model, when, epoch=epoch, step=last_step)
        found: dict[str, float] | None = None
        if self.group.leads:
            found = evaluate(self.plan.eval_fn, self.model, self.checkpoints.averaged(), epoch)
        return self.group.broadcast_object(found)

    def _report(self, metrics: EpochMetrics) -> None:
        """Report a finished epoch; on rank 0."""
        self._reporter.tell_facts(self.engine.report())
        self._reporter.end_epoch(metrics)
        told = self.plan.metrics_fn
        if told is not None and call_back("metrics_fn", metrics.epoch, told, metrics) is False:
            self.run.stop("metrics_fn returned False")

    def barrier(self) -> None:
        """Write what is due while all ranks have the same model, then continue; collective."""
        epochs, plan = self.schedule.complete, self.plan
        if epochs % plan.checkpoint_every == 0 or self.ended:
            self.save()
            if plan.checkpoint_fn is not None and self.group.leads and epochs:
                call_back("checkpoint_fn", epochs - 1, plan.checkpoint_fn, epochs, self.model)
        # Work of rank 0 alone may take long, and the next exchange has a short timeout.
        self.group.barrier()
        self._ledger.lap(Account.CHECKPOINT)
        self.schedule = pass_barrier(self.schedule, self.config)
        self.logs.restart_clock()

    def checkpoint_due(self) -> bool:
        """Whether the position passed a multiple of ``checkpoint_steps`` since the last save."""
        if self.plan.checkpoint_steps is None:
            return False
        every = self.plan.checkpoint_steps * self.plan.accumulate
        return self.schedule.position // every > self._saved_at // every

    def keep_if_due(self) -> None:
        """Save a checkpoint inside an epoch if one is due; collective."""
        if self.checkpoint_due():
            self.save()

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
        state = self.schedule
        message = (
            f"stopped after {state.complete} complete epochs, {state.position} batches of all "
            f"ranks; {self.whereabouts()}"
            if self.group.leads
            else ""
        )
        if self.stops.told:
            end_launcher(self.group, self.stops.interrupt)
        self.stops.leave(message)

    def save(self) -> None:
        """Save the state of all ranks in the run directory; collective."""
        self._saved_at = self.schedule.position
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
        written = self.checkpoints.save(
            self.schedule,
            self.logs,
            counts,
            history=self.history,
            records=self._reporter.records(),
            time_ledger=self._ledger.state_dict(),
            engine=self.engine.decision(),
            acts=acts,
            guard=self.left_out.state() if self.left_out is not None else {},
        )
        if written is not None:
            self.hooks.call("on_checkpoint", self.run, written)
        self._ledger.lap(Account.CHECKPOINT)
