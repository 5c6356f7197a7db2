"""The policies that share the batches among ranks, by a schedule that all of them compute."""

from __future__ import annotations

from collections import defaultdict
from math import fsum, nan
from typing import TYPE_CHECKING

import torch

from flodl.monitor.ledger import Account
from flodl.ranks.planning.scheduler import leave_out, pass_barrier, pass_left_out
from flodl.ranks.planning.spans import numbers
from flodl.ranks.settings import Policy
from flodl.train.observers.guards.loss_guard import Losses
from flodl.train.policies.base import PolicyLoop
from flodl.train.policies.rank_batches import RankBatches
from flodl.train.run.training_state import Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from flodl.data import Batch
    from flodl.train.loop import Loop
    from flodl.train.policies.moment import Moment


class SharedLoop(PolicyLoop):
    """Trains single batches of a schedule.

    Args:
        worker: The loop, which has begun.

    Attributes:
        data: The batches of this rank.
    """

    def __init__(self, worker: Loop) -> None:
        super().__init__(worker)
        length, start = worker.config.batches_per_epoch, worker.start
        self.data = RankBatches(worker.parts.loader, length, worker.group.rank)
        self._begun = worker.schedule.complete + (1 if start.position.step else 0)
        self._ended = worker.schedule.complete
        self._units: defaultdict[int, list[int]] = defaultdict(list)
        """By epoch, for each batch of this rank that is not judged yet, where its loss counts."""
        self._latest = 0
        together = worker.config.policy is Policy.SYNC
        self._watch(worker.group.world_size * worker.plan.accumulate if together else 1)
        self._leave_out()

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
        unit: int | None = None,
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
            unit: First batch of the step that ranks share, whose mean loss is judged.
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
        if self.guard is not None:
            self._latest = number if unit is None else unit
            self._units[epoch].append(self._latest)
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

    # --- What guards leave out -----------------------------------------------------------------

    def losses(self, *, wait: bool | None) -> Losses:  # noqa: ARG002 - all ranks must wait
        """Return the losses of all ranks that were not judged yet; collective."""
        mine: list[tuple[int, float]] = []
        for epoch, values in self._worker.logs.to_judge():
            mine += zip(self._units.pop(epoch, ()), values, strict=False)
        found: defaultdict[int, list[float]] = defaultdict(list)
        ranks = self._worker.group.gather_objects((mine, self._latest))
        for theirs, _ in ranks:
            for unit, loss in theirs:
                found[unit].append(loss)
        units = sorted(found)
        length, latest = self._worker.config.batches_per_epoch, max(last for _, last in ranks)

        def place_of(place: int) -> tuple[int, int]:
            return divmod(units[place] if place >= 0 else latest, length)

        return Losses([_mean(found[unit]) for unit in units], place_of)

    def return_to(self, moment: Moment) -> None:
        """Go back to a moment; model and optimizer are there already."""
        super().return_to(moment)
        self._units.clear()
        self._leave_out()

    def is_left(self, moment: Moment, epoch: int, batch: int) -> bool:
        """Whether a batch was neither trained nor passed over at a moment."""
        length, schedule = self._worker.config.batches_per_epoch, moment.schedule
        return schedule is not None and schedule.is_left(epoch * length + batch, length)

    def _leave_out(self) -> None:
        """Let no rank train what guards have decided to leave out."""
        if self.left_out is not None:
            worker = self._worker
            worker.schedule = leave_out(worker.schedule, worker.config, self.left_out.numbers)

    def _pass_left_out(self) -> None:
        """Go past the batches that come next and are left out: record them."""
        if self.left_out is None:
            return
        worker, loader = self._worker, self._worker.parts.loader
        first = worker.schedule.position
        worker.schedule, passed = pass_left_out(worker.schedule, worker.config)
        for position, number in enumerate(numbers(passed), first):
            epoch, batch = divmod(number, worker.config.batches_per_epoch)
            self.left_out.pass_over(epoch, batch)
            if worker.group.leads:
                place, rows = batch * loader.batch_size, loader.rows(epoch, batch)
                worker.checkpoints.samples.left_out_samples(epoch, place, position, rows)

    def _complete_epochs(self, *, averaged: bool) -> None:
        """End the epochs of which every batch is trained or left out; collective."""
        worker = self._worker
        while self._ended < worker.schedule.complete:
            epoch, self._ended = self._ended, self._ended + 1
            self._begin_epochs(self._ended * worker.config.batches_per_epoch)
            worker.complete_epoch(epoch, averaged=averaged)
            self.forget()

    @torch.no_grad()
    def _repair_optimizer(self) -> None:
        """Zero the tensors of the optimizer's state that hold values that are not finite."""
        for kept in self._worker.parts.optimizer.state.values():
            for value in kept.values():
                if isinstance(value, torch.Tensor) and not value.isfinite().all():
                    value.zero_()


def _mean(losses: Sequence[float]) -> float:
    return fsum(losses) / len(losses) if all(one - one == 0.0 for one in losses) else nan
