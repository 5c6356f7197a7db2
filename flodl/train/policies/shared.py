"""The policies that share the batches among ranks, by a schedule that all of them compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from flodl.monitor.ledger import Account
from flodl.ranks.planning.scheduler import pass_barrier
from flodl.ranks.settings import Policy
from flodl.train.observers.guards.rank_guard import RankGuard
from flodl.train.observers.guards.rank_left_out import RankLeftOut, repeated
from flodl.train.policies.base import PolicyLoop
from flodl.train.policies.rank_batches import RankBatches
from flodl.train.run.training_state import Position

if TYPE_CHECKING:
    from torch import Tensor

    from flodl.data import Batch
    from flodl.train.loop import Loop


class SharedLoop(PolicyLoop):
    """Trains single batches of a schedule.

    Args:
        worker: The loop, which has begun.

    Attributes:
        data: The batches of this rank.
        guard: Takes all ranks back after a setback; None without guards.
        left_out: What guards leave out; None if it is nothing.
    """

    def __init__(self, worker: Loop) -> None:
        super().__init__(worker)
        length, start = worker.config.batches_per_epoch, worker.start
        self.data = RankBatches(worker.parts.loader, length, worker.group.rank)
        self._begun = worker.schedule.complete + (1 if start.position.step else 0)
        guards = worker.plan.guards
        self.guard = RankGuard(guards, worker, start) if guards is not None else None
        self.left_out: RankLeftOut | None = self.guard or repeated(worker, start)

    # --- The place -----------------------------------------------------------------------------

    @property
    def at_barrier(self) -> bool:
        """Whether every batch before the barrier is trained, or the ranks agreed to stop."""
        schedule = self._worker.schedule
        return schedule.complete > schedule.barrier or self._worker.stops.agreed

    def pass_barrier(self) -> None:
        """Continue with the batches after the barrier."""
        self._worker.schedule = pass_barrier(self._worker.schedule, self._worker.config)

    def place(self) -> Position:
        """Return complete epochs, batches of the next one, and steps as one process has them."""
        worker, schedule = self._worker, self._worker.schedule
        step = schedule.position - schedule.complete * worker.config.batches_per_epoch
        return Position(schedule.complete, step, schedule.position // worker.plan.accumulate)

    def told_place(self) -> str:
        """Return how much is trained, for people."""
        schedule = self._worker.schedule
        return f"{schedule.complete} complete epochs, {schedule.position} batches of all ranks"

    def forget(self) -> None:
        """Never go back past this point."""
        if self.guard is not None:
            self.guard.forget()

    def guard_state(self) -> Mapping[str, Any]:
        """Return what guards know."""
        return self.left_out.state() if self.left_out is not None else {}

    def windows(self) -> tuple[int, tuple[int, ...]]:
        """Return the batches of the slowest rank between two averages, and those of each rank."""
        worker, elche = self._worker, self._worker.schedule.elche
        if worker.config.policy is Policy.SYNC:
            return 1, (1,) * worker.group.world_size
        return elche.anchor, elche.counts

    def set_rate_place(self) -> None:
        """Let learning rates be those of the next step, between two steps."""
        worker = self._worker
        place = self._rate_limit(worker.schedule.position) // worker.plan.accumulate
        worker.rate.steered.position = place

    def _rate_limit(self, position: int) -> int:
        """Limit a position to the last batch, for schedules that know the training's length."""
        config = self._worker.config
        return min(position, config.epochs * config.batches_per_epoch - 1)

    def _checkpoint_due(self) -> bool:
        """Whether the position passed a multiple of ``checkpoint_steps`` since the last save."""
        worker = self._worker
        if worker.plan.checkpoint_steps is None:
            return False
        every = worker.plan.checkpoint_steps * worker.plan.accumulate
        return worker.schedule.position // every > worker.saved_at // every

    def _keep_if_due(self) -> None:
        """Save a checkpoint inside an epoch if one is due; collective."""
        if self._checkpoint_due():
            self._worker.save()

    # --- Batches -------------------------------------------------------------------------------

    def _begin_epochs(self, stop: int) -> None:
        """Begin the epochs of all batches before ``stop``, on this rank.

        The batches may belong to any rank.
        """
        last = (stop - 1) // self._worker.config.batches_per_epoch
        while self._begun <= last:
            self._worker.begin_epoch(self._begun)
            self._begun += 1

    def _train_batch(
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
        worker = self._worker
        epoch, within = divmod(number, worker.config.batches_per_epoch)
        known, engine, samples = worker.logs.of(epoch), worker.engine, len(rows)
        worker.book(Account.DATA)
        if worker.first_batch.waits:
            worker.first_batch.look(worker.model, batch)
            worker.book(Account.SETUP)
            worker.timer.begin()  # the comparison says nothing about the speed of this rank
        worker.set_busy(True)
        self._reach(position)
        known.expect(samples)
        trace = worker.checkpoints.trace
        if trace.steps >= trace.next_step:
            trace.look(worker.model, batch, trace.steps)
        try:
            engine.step(batch, known.losses, parts=parts, closes=closes)
        except Exception as error:
            error.add_note(f"in epoch {epoch}, batch {within} (both counted from 0)")
            raise
        loader = worker.parts.loader
        place = within * loader.batch_size + skip
        worker.checkpoints.samples.trained_samples(epoch, place, position, rows)
        if trace.is_on:
            trace.trained(epoch, place, samples, parts=parts, closes=closes, order=loader.order)
        worker.local_step += 1
        known.batches += 1
        known.samples += samples
        self._look_up(epoch, position, closes=closes)
        gradient = worker.gradient
        ms = gradient.busy_ms if closes and gradient is not None else worker.timer.end_batch()
        known.busy_ms += ms
        worker.set_busy(False)
        return ms

    def _follow(self, position: int) -> None:
        """Take part in a shared step without a batch on this rank."""
        self._reach(position)
        self._worker.engine.follow()
        self._worker.checkpoints.trace.steps += 1
        self._worker.end_step()

    def _reach(self, position: int) -> None:
        """Set the learning rate for a position; it is the same on every rank."""
        worker = self._worker
        worker.rate.steered.position = steps = position // worker.plan.accumulate
        if worker.parts.torch_schedule is not None:
            worker.parts.torch_schedule.advance(steps)

    def _look_up(self, epoch: int, position: int, *, closes: bool) -> None:
        """Call the step hooks and update the progress display."""
        worker, reporter = self._worker, self._worker.reporter
        worker.run.step += 1
        if closes:
            worker.end_step()
        if not worker.group.leads:
            return
        length = worker.config.batches_per_epoch
        if epoch > worker.told:
            if worker.told >= 0:
                reporter.end_steps()
            worker.told = epoch
            known = worker.logs.of(epoch)
            reporter.begin_epoch(
                epoch,
                steps=length,
                done=0,
                first_step=worker.engine.global_step - closes,
                losses=known.losses,
                scalars=known.scalars,
            )
        elif reporter.is_due:
            reporter.tick(max(0, min(position - epoch * length, length)))

    @torch.no_grad()
    def _repair_optimizer(self) -> None:
        """Zero the tensors of the optimizer's state that hold values that are not finite."""
        for kept in self._worker.parts.optimizer.state.values():
            for value in kept.values():
                if isinstance(value, torch.Tensor) and not value.isfinite().all():
                    value.zero_()
