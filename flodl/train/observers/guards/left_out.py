"""The batches that guards leave out, in a training on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flodl import log
from flodl.data import DataLoader
from flodl.train.observers.guards.guard import Guard
from flodl.train.observers.guards.records import GuardRecords
from flodl.train.observers.guards.settings import Guards
from flodl.train.observers.journal import NAME as FILE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flodl.train.parts import Assembly
    from flodl.train.plan import TrainingPlan
    from flodl.train.run.resume import Start
    from flodl.train.step.base import StepEngine
    from flodl.train.step.learning_rate import SteeredRate


@dataclass(frozen=True, slots=True)
class GuardedParts:
    """What a guard copies, restores and drives."""

    plan: TrainingPlan
    assembly: Assembly
    engine: StepEngine
    rate: SteeredRate


class LeftOutBatches:
    """Leaves out what the guards of the continued training have decided, and decides nothing.

    So a resumed training without guards trains on the same data as the one that it continues.

    Args:
        parts: The parts of the training.
        start: Where the training begins.
        settings: The limits of a guard that decides more.

    Attributes:
        skips: The batches of the current epoch that are left out.
    """

    skips: set[int]

    def __init__(self, parts: GuardedParts, start: Start, settings: Guards | None = None) -> None:
        plan, loader = parts.plan, parts.assembly.batches
        assert isinstance(loader, DataLoader)  # noqa: S101 - the builder refuses other data
        self._parts, self._loader, self._epoch = parts, loader, 0
        self._guard = Guard(
            settings or Guards(),
            batches_per_step=plan.accumulate,
            batches_per_epoch=loader.num_batches,
        )
        self._records = GuardRecords(plan.run_dir)
        self.skips = set()
        self._resume(start)

    def _resume(self, start: Start) -> None:
        if known := start.state.guard:
            self._guard.load(known["guard"])
            self._parts.rate.scale = float(known["scale"])
        position = start.position
        replayed = self._guard.replay(self._records.of(start.source), position.epoch, position.step)
        self._records.repeat(replayed, start.source)

    def state(self, epoch: int) -> Mapping[str, Any]:
        """Return the state for a checkpoint in this epoch, as JSON values."""
        return {"guard": self._guard.state(epoch), "scale": self._parts.rate.scale}

    def has_effect(self, start: Start) -> bool:
        """Whether the training differs from one that never had a guard; prints why."""
        position = start.position
        batches = self._guard.left_out_from(position.epoch, position.step)
        if batches and start.source is not None:
            log.msg(told_repeated(batches, start.source))
        return bool(batches) or self._parts.rate.scale != 1.0

    def enter(self, epoch: int) -> None:
        """Begin an epoch, or continue it."""
        self._epoch, self.skips = epoch, self._guard.skips(epoch)

    @property
    def samples(self) -> int:
        """Number of samples of the current epoch that are left out."""
        return sum(len(self._loader.rows(self._epoch, batch)) for batch in self.skips)

    def pass_over(self, batch: int) -> None:
        """Leave a batch out, between two steps; the learning rate changes if it is to be lower."""
        factor, parts = self._guard.factor(self._epoch, batch), self._parts
        if factor != 1:
            parts.rate.multiply(factor, parts.assembly.optimizer)


def told_repeated(batches: int, source: Path) -> str:
    """Return what a training without guards says when it leaves out batches.

    Args:
        batches: Their number.
        source: The checkpoint that it continues.
    """
    count = "1 batch" if batches == 1 else f"{batches:,} batches"
    return (
        f"  the guards of {source.parent.name} left out {count} after this checkpoint, and so does "
        f"this training; see {source.parent / FILE}"
    )


def repeated(parts: GuardedParts, start: Start) -> LeftOutBatches | None:
    """Return what a training without guards leaves out, because it continues one with guards.

    None if it continues none, or if nothing that the guards decided has an effect any more.
    """
    if start.source is None or not isinstance(parts.assembly.batches, DataLoader):
        return None  # guards refuse data that can only be iterated
    found = LeftOutBatches(parts, start)
    return found if found.has_effect(start) else None
