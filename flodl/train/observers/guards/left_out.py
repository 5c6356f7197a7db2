"""The batches that guards leave out, and the acts of a guard in the journal of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from flodl import log
from flodl.train.observers.guards.guard import NAME, Guard, Guards
from flodl.train.observers.journal import NAME as FILE, Act, Journal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flodl.data import DataLoader
    from flodl.ranks.group import Group
    from flodl.train.callbacks import Rewind
    from flodl.train.observers.guards.guard import Decision, Setback
    from flodl.train.parts import Assembly, CountedRate
    from flodl.train.run.resume import Start
    from flodl.train.run.run_directory import RunDirectory
    from flodl.train.settings import TrainingPlan


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
        acts = group.broadcast_object(Journal.beside(start.source) if group.leads else [])
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


_SHOWN = 20
"""Samples that texts name; the value of an act names all."""


@final
class GuardRecords:
    """Writes the acts of a guard into the run directory, if there is one.

    Args:
        run: The run directory; None for none.
        tells: Whether to print, too; of several ranks only one does.
    """

    def __init__(self, run: RunDirectory | None, *, tells: bool = True) -> None:
        self._tells = tells
        self._folder = run.path if run is not None and run.writes else None
        self._journal = Journal.of_run(run)

    def repeat(self, acts: Sequence[Act], source: Path | None) -> None:
        """Record acts of the run that this run continues; they will have an effect in this one."""
        if source is None or self._folder is None:
            return
        if source.parent.absolute() == self._folder.absolute():
            return
        for act in acts:
            detail = f"{act.detail} (as in {source.parent.name})"
            self._journal.note(Act.now(act.step, act.act, value=act.value, by=NAME, detail=detail))

    def decided(
        self,
        setback: Setback,
        decision: Decision,
        rewind: Rewind,
        *,
        rate: float,
    ) -> None:
        """Record and print that the training goes back, and what it leaves out.

        Args:
            setback: What happened.
            decision: What follows from it.
            rewind: What callbacks learn about it.
            rate: The learning rate before.
        """
        samples, restored = rewind.samples, rewind.restored_step
        if self._tells:
            _print(setback, decision, rewind)
        why = f"{setback.what} in epoch {decision.epoch}, batch {setback.batch}"
        self._journal.note(
            Act.now(restored, "rewind", value=restored, old=rewind.step, by=NAME, detail=why)
        )
        detail = f"epoch {decision.epoch}, {_named(decision.batches)}: samples {_listed(samples)}"
        value = decision.as_json(samples)
        self._journal.note(Act.now(restored, "skip", value=value, by=NAME, detail=detail))
        if decision.factor != 1:
            lower = rate * decision.factor
            detail = f"from batch {decision.batches[0]} of epoch {decision.epoch} on"
            self._journal.note(
                Act.now(restored, "lower_lr", value=lower, old=rate, by=NAME, detail=detail)
            )

    def given_up(self, why: str, step: int) -> None:
        """Record that the training ends."""
        self._journal.note(Act.now(step, "give_up", by=NAME, detail=why))


def _print(setback: Setback, decision: Decision, rewind: Rewind) -> None:
    batches = f"{_named(decision.batches)} (samples {_listed(rewind.samples)})"
    lowered = f", learning rate times {decision.factor:g}" if decision.factor != 1 else ""
    log.warning(
        f"{NAME}: {setback.what} in epoch {decision.epoch}, batch {setback.batch} (both counted "
        f"from 0); back from step {rewind.step} to {rewind.restored_step}, without {batches}"
        f"{lowered}; attempt {decision.attempt}"
    )


def _listed(samples: Sequence[int]) -> str:
    shown = ", ".join(map(str, samples[:_SHOWN]))
    return f"{shown} and {len(samples) - _SHOWN:,} more" if samples[_SHOWN:] else shown


def _named(batches: Sequence[int]) -> str:
    first, last = batches[0], batches[-1]
    if first == last:
        return f"batch {first}"
    if last - first == len(batches) - 1:
        return f"batches {first} to {last}"
    return f"batches {_listed(batches)}"
