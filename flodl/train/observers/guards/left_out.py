"""The batches that guards leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flodl import log
from flodl.train.observers.guards.guard import Guard
from flodl.train.observers.guards.records import GuardRecords
from flodl.train.observers.guards.settings import Guards
from flodl.train.observers.journal import NAME as FILE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flodl.data import DataLoader
    from flodl.ranks.group import Group
    from flodl.train.parts import Assembly, CountedRate
    from flodl.train.plan import TrainingPlan
    from flodl.train.run.resume import Start


class LeftOut:
    """Leaves out what the guards of the continued training have decided, and decides nothing.

    So a resumed training without guards trains on the same data as the one that it continues.
    All ranks leave out the same.

    Args:
        plan: The plan of the training.
        group: The ranks.
        assembly: The parts of the training.
        rate: The learning rate, which a decision may lower.
        start: Where the training begins.
        place: Complete epochs, and batches of the next one that are done.
        batches_per_step: Batches of all ranks in one optimizer step.
        settings: The limits of a guard that decides more.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        group: Group,
        assembly: Assembly,
        rate: CountedRate,
        start: Start,
        place: tuple[int, int],
        *,
        batches_per_step: int,
        settings: Guards | None = None,
    ) -> None:
        self._assembly, self._rate, self._group = assembly, rate, group
        self._guard = Guard(
            settings or Guards(),
            batches_per_step=batches_per_step,
            batches_per_epoch=assembly.loader.num_batches,
        )
        self._records = GuardRecords(plan.run_dir, tells=group.leads)
        if known := start.state.guard:
            self._guard.load(known["guard"])
            rate.steered.scale = float(known["scale"])
        acts = group.broadcast_object(self._records.of(start.source) if group.leads else [])
        self._records.repeat(self._guard.replay(acts, *place), start.source)
        self._first = place

    @property
    def _loader(self) -> DataLoader:
        return self._assembly.loader

    def tell_repeated(self, source: Path | None) -> bool:
        """Say what a training leaves out that continues one with guards.

        Args:
            source: The checkpoint; None on ranks that do not read it.

        Returns:
            Whether it differs from a training that never had a guard.
        """
        batches = sum(one >= self._first for one in self._guard.all_skips())
        if batches and source is not None:
            count = "1 batch" if batches == 1 else f"{batches:,} batches"
            log.msg(
                f"  the guards of {source.parent.name} left out {count} after this checkpoint, and "
                f"so does this training; see {source.parent / FILE}"
            )
        return bool(batches) or self._rate.steered.scale != 1.0

    def state(self, epoch: int) -> Mapping[str, Any]:
        """Return the state for a checkpoint in this epoch, as JSON values."""
        return {"guard": self._guard.state(epoch), "scale": self._rate.steered.scale}

    def skips(self, epoch: int) -> set[int]:
        """Return the batches of an epoch that are left out; it grows with the decisions."""
        return self._guard.skips(epoch)

    @property
    def numbers(self) -> list[int]:
        """All batches that are left out, counted through all epochs."""
        length = self._loader.num_batches
        return [epoch * length + batch for epoch, batch in self._guard.all_skips()]

    def samples(self, epoch: int) -> int:
        """Return the number of samples of an epoch that are left out."""
        return sum(len(self._loader.rows(epoch, batch)) for batch in self.skips(epoch))

    def pass_over(self, epoch: int, batch: int) -> None:
        """Leave a batch out, between two steps; the learning rate changes if it is to be lower."""
        factor = self._guard.factor(epoch, batch)
        if factor != 1:
            self._rate.steered.multiply(factor, self._assembly.optimizer)
