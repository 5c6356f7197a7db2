"""The guard of a training: it judges the losses, and takes the training back."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, final

import torch

from flodl.errors import DivergedError
from flodl.train.observers.checkpoints import non_finite_parameters
from flodl.train.observers.digest_times import DigestTimes
from flodl.train.observers.guards.first_non_finite import FirstNonFinite, sentence
from flodl.train.observers.guards.guard import Setback
from flodl.train.observers.guards.left_out import LeftOut
from flodl.train.observers.guards.rewinding import rewind_of
from flodl.train.observers.guards.snapshots import SnapshotRing
from flodl.train.peak_memory import available_bytes
from flodl.train.run.loop_state import LoopState, modes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flodl.ranks.group import Group
    from flodl.train.callbacks import Rewind
    from flodl.train.observers.guards.settings import Guards
    from flodl.train.observers.guards.snapshots import Snapshot
    from flodl.train.parts import Assembly
    from flodl.train.plan import TrainingPlan
    from flodl.train.rank_parts import CountedRate
    from flodl.train.run.resume import Start
    from flodl.train.run.training_state import Position
    from flodl.train.step.base import StepEngine

_EVERY = 100
"""Steps between two looks of several ranks, whose clocks differ, if flodl may choose."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of all ranks that were not judged before.

    Attributes:
        values: In the order of the batches.
        place_of: Returns epoch and batch of a place in ``values``; -1 for the last that was
            trained, also if its loss was judged before.
    """

    values: Sequence[float]
    place_of: Callable[[int], tuple[int, int]]


class Guarded(Protocol):
    """What a guard takes back: the order of the batches, and the counters."""

    def losses(self, *, wait: bool | None) -> Losses:
        """Return the losses since the last call; collective.

        Args:
            wait: Wait for the device; None returns only what has been read already.

        Raises:
            DivergedError: A loss is not finite, and this training cannot have such losses.
        """

    def place(self) -> Position:
        """Return complete epochs and batches of the next one."""

    def moment(self) -> Any:
        """Return everything that is counted, between two steps."""

    def return_to(self, moment: Any) -> None:
        """Go back to the result of :meth:`moment`; model and optimizer are there already."""

    def is_left(self, moment: Any, epoch: int, batch: int) -> bool:
        """Whether a batch was not trained at a moment."""

    def train_again(self, setback: Setback, look: FirstNonFinite) -> str:
        """Train up to the batch of a setback, or until a look finds something; return where."""


@final
class LossGuard(LeftOut):
    """Judges the losses of a training, and takes all its ranks back to the same step.

    Every rank keeps its own snapshots and computes the same decisions; all methods are collective.

    Args:
        plan: The plan of the training.
        group: The ranks.
        assembly: The parts of the training.
        rate: The learning rate.
        start: Where the training begins.
        place: Complete epochs, and batches of the next one that are done.
        batches_per_step: Batches of all ranks in one optimizer step.
        settings: The limits.
        engine: Counts the steps.
        guarded: What it takes back.

    Attributes:
        next_step: Optimizer steps after which :meth:`look` is due.
    """

    next_step: float

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
        settings: Guards,
        engine: StepEngine,
        guarded: Guarded,
    ) -> None:
        super().__init__(
            plan, group, assembly, rate, start, place, batches_per_step=batches_per_step,
            settings=settings,
        )  # fmt: skip
        self._engine, self._guarded = engine, guarded
        self._gradients = plan.scaler is None
        self._every = settings.every
        if self._every is None and group.world_size > 1:
            self._every = _EVERY
        memory = settings.memory
        if memory is None and group.world_size > 1:
            # Ranks may share a host. All keep equally many, so that they decide alike.
            own = available_bytes(torch.device("cpu")) // 2 // group.world_size
            memory = int(min(row[0] for row in group.gather([float(own)])))
        self._ring = SnapshotRing(settings.snapshots, memory)
        self._times = DigestTimes(engine.global_step)
        self.next_step = engine.global_step

    # --- Steps ---------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop all snapshots: the training never goes back past this point."""
        self._ring.clear()

    def ready(self) -> None:
        """Take a snapshot before the next step if there is none.

        Raises:
            ValueError: The training cannot be kept in memory.
        """
        if not len(self._ring):
            self.keep()
        else:
            self._times.run(self._engine.global_step)

    def pause(self) -> None:
        """Do not count the time from now on to the steps."""
        self._times.pause(self._engine.global_step)

    def look(self, *, certain: bool = False, keeps: bool = True) -> None:
        """Judge the losses so far, and take a snapshot if one is due; between two steps.

        Args:
            certain: Wait for all losses of a device, and look at the parameters, too.
            keeps: Whether a snapshot may be taken.

        Raises:
            Setback: A loss or a parameter is bad; on all ranks.
            DivergedError: A loss is not finite.
        """
        due = self.is_due()
        found = self._judge(wait=certain or due)
        if certain and (broken := self._broken()):
            what = f"{', '.join(broken[:3])} hold values that are not finite"
            raise Setback(what, *found.place_of(-1))
        if due and keeps:
            self.keep()

    def is_due(self) -> bool:
        """Whether a snapshot is due after the latest step; the same on all ranks."""
        step = self._engine.global_step
        if step < self.next_step or self._every is not None:
            return step >= self.next_step
        due = self._times.is_due(step)
        self.next_step = self._times.next_step
        return due

    def keep(self) -> None:
        """Take a snapshot of a state that was judged."""
        began, assembly, scaler = time.perf_counter(), self._assembly, self._engine.settings.scaler
        self._engine.present()
        extra = {
            "rule": self._guard.rule_state(),
            "rate": self._rate.state(),
            "modes": modes(assembly.model),
            "skipped": scaler.skipped if scaler is not None else 0,
            "cached": self._loader.cached_samples,
        }
        position = replace(self._guarded.place(), global_step=self._engine.global_step)
        self._ring.take(assembly.parts(extra), position, self._guarded.moment())
        self._plan(time.perf_counter() - began)

    def _plan(self, seconds: float) -> None:
        """Plan the next snapshot after one that took so long."""
        step, every = self._engine.global_step, self._every
        self._times.taken(step, seconds)
        self.next_step = self._times.next_step if every is None else (step // every + 1) * every

    def _judge(self, *, wait: bool | None) -> Losses:
        found = self._guarded.losses(wait=wait)
        place = self._guard.first_bad(found.values)
        if place is not None:
            raise Setback(self._guard.told(found.values[place]), *found.place_of(place))
        return found

    def _broken(self) -> list[str]:
        found = self._group.gather_objects(non_finite_parameters(self._assembly.model))
        return next((names for names in found if names), [])

    # --- Setbacks ------------------------------------------------------------------------------

    def cause(self, problem: DivergedError, epoch: int, batch: int, *, before: bool) -> Setback:
        """Return why a step could not be taken.

        Args:
            problem: What the step raised; on all ranks.
            epoch: Counted from 0.
            batch: First batch of the step.
            before: Whether the step raised it before it changed a parameter.
        """
        try:
            # A spike may have come first: the parameters that it left made this loss.
            self._judge(wait=None)
        except Setback as earlier:
            found = earlier
        else:
            found = Setback(problem.what, epoch, batch)
        if before and (found.epoch, found.batch) == (epoch, batch):
            found.broken = bool(self._broken())
        return found

    def go_back(self, setback: Setback) -> Rewind | None:
        """Restore an earlier state, and leave out the batches that caused a setback.

        Returns:
            What happened, for callbacks. None if there were too many attempts: nothing is restored,
            and :meth:`give_up` ends the training.
        """
        step, oldest = self._engine.global_step, self._ring.oldest.kept
        still = self._guarded.is_left
        decision = self._guard.decide(setback, lambda *place: still(oldest, *place))
        if decision is None:
            return None
        batches, epoch = decision.batches, decision.epoch
        snapshot = self._ring.newest(
            lambda moment: all(still(moment, epoch, batch) for batch in batches),
            self._assembly.model,
        )
        rate = float(self._assembly.optimizer.param_groups[0]["lr"])
        self._restore(snapshot)
        rewind = rewind_of(setback, decision, self._loader, step, self._engine.global_step)
        self._records.decided(setback, decision, rewind, rate=rate)
        return rewind

    def give_up(self, setback: Setback) -> DivergedError:
        """Find the first module that is not finite, and return the error for the end.

        It goes back once more, and trains the steps up to the bad batch with hooks.
        """
        epoch, batch, model = setback.epoch, setback.batch, self._assembly.model
        step, still = self._engine.global_step, self._guarded.is_left
        self._restore(self._ring.newest(lambda moment: still(moment, epoch, batch), model))
        look = FirstNonFinite(model, gradients=self._gradients)
        with look.watching():
            where = self._guarded.train_again(setback, look)
        found = self._group.gather_objects(f"{look.found}, {where}" if look.found else "")
        told = self._guard.farewell(setback, sentence(next(filter(None, found), "")))
        self._records.given_up(told, step)
        return DivergedError(told, epoch=epoch, step=batch)

    def _restore(self, snapshot: Snapshot) -> None:
        assembly, extra, scaler = self._assembly, snapshot.extra, self._engine.settings.scaler
        snapshot.restore(assembly.parts({}))
        self._rate.restore(extra["rate"])
        self._loader.drop_cached(int(extra["cached"]))
        LoopState(**extra["modes"]).apply_modes(assembly.model)
        if scaler is not None:
            scaler.skipped = int(extra["skipped"])
        self._engine.global_step = snapshot.position.global_step
        self._guard.load_rule(extra["rule"])
        self._guarded.return_to(snapshot.kept)
        self._times = DigestTimes(self._engine.global_step)
        self._plan(0.0)
