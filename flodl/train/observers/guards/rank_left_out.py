"""The batches that guards leave out, in ranks that take every step together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flodl import log
from flodl.ranks.settings import Policy
from flodl.train.observers.guards.guard import Guard
from flodl.train.observers.guards.left_out import told_repeated
from flodl.train.observers.guards.records import GuardRecords
from flodl.train.observers.guards.settings import Guards

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flodl.train.loop import Loop
    from flodl.train.run.resume import Start


class RankLeftOut:
    """Leaves out what the guards of the continued training have decided, and decides nothing.

    Args:
        worker: The rank.
        start: Where the training begins.
        settings: The limits of a guard that decides more.
    """

    def __init__(self, worker: Loop, start: Start, settings: Guards | None = None) -> None:
        plan, group = worker.plan, worker.group
        self._worker = worker
        self._length = worker.config.batches_per_epoch
        self._guard = Guard(
            settings or Guards(),
            batches_per_step=group.world_size * plan.accumulate,
            batches_per_epoch=self._length,
        )
        self._records = GuardRecords(plan.run_dir, tells=group.leads)
        if known := start.state.guard:
            self._guard.load(known["guard"])
            worker.rate.steered.scale = float(known["scale"])
        acts = self._records.of(start.source) if group.leads else []
        self._place = divmod(worker.schedule.position, self._length)
        replayed = self._guard.replay(group.broadcast_object(acts), *self._place)
        self._records.repeat(replayed, start.source)

    @property
    def left_out(self) -> int:
        """Number of batches that are left out from the start of this training on."""
        return self._guard.left_out_from(*self._place)

    def state(self) -> Mapping[str, Any]:
        """Return the state for a checkpoint, as JSON values."""
        epoch = self._worker.schedule.complete
        return {"guard": self._guard.state(epoch), "scale": self._worker.rate.steered.scale}

    def leaves_out(self, numbers: Sequence[int]) -> bool:
        """Whether a step with these batches, counted through all epochs, is left out."""
        epoch = numbers[0] // self._length
        skips = self._guard.skips(epoch)
        return bool(skips) and any(number - epoch * self._length in skips for number in numbers)

    def pass_over(self, numbers: Sequence[int], position: int) -> None:
        """Leave the batches of a step out: record them, and lower the rate if that is decided."""
        worker, loader = self._worker, self._worker.parts.loader
        for number in numbers:
            epoch, within = divmod(number, self._length)
            factor = self._guard.factor(epoch, within)
            if factor != 1:
                worker.rate.steered.multiply(factor, worker.parts.optimizer)
            if worker.group.leads:
                place = within * loader.batch_size
                rows = loader.rows(epoch, within)
                worker.checkpoints.samples.left_out_samples(epoch, place, position, rows)


def repeated(worker: Loop, start: Start) -> RankLeftOut | None:
    """Return what a training without guards leaves out, because it continues one with guards.

    None if it continues none, or if nothing that the guards decided has an effect any more.
    Collective.

    Raises:
        ValueError: The policy has no common steps that could be left out.
    """
    if not worker.group.broadcast_object(start.source is not None):
        return None
    found = RankLeftOut(worker, start)
    if not found.left_out:
        return found if start.state.guard else None
    if worker.config.policy is not Policy.SYNC:
        raise ValueError(
            f"the guards of the training that is resumed left out {found.left_out} of the next "
            f"batches, and policy {str(worker.config.policy)!r} cannot leave out a step: resume "
            "with .policy('sync')"
        )
    if start.source is not None:
        log.msg(told_repeated(found.left_out, start.source))
    return found
