"""The guard of a training on one device."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from flodl.errors import DivergedError
from flodl.train.observers.checkpoints import non_finite_parameters
from flodl.train.observers.digest_times import DigestTimes
from flodl.train.observers.guards.diagnosis import diagnosed
from flodl.train.observers.guards.guard import Setback
from flodl.train.observers.guards.left_out import LeftOutBatches
from flodl.train.observers.guards.rewinding import rewind_of
from flodl.train.observers.guards.snapshots import SnapshotRing
from flodl.train.run.loop_state import LoopState, UnfinishedEpoch, modes
from flodl.train.run.training_state import Position
from flodl.train.step.losses import HostLossLog

if TYPE_CHECKING:
    from flodl.train.callbacks import Rewind
    from flodl.train.metrics import ScalarLog
    from flodl.train.observers.guards.left_out import GuardedParts
    from flodl.train.observers.guards.settings import Guards
    from flodl.train.observers.guards.snapshots import Snapshot
    from flodl.train.run.resume import Start
    from flodl.train.step.losses import LossLog


@final
@dataclass(frozen=True, slots=True)
class Restored:
    """A state inside an epoch that a guard has restored.

    Attributes:
        done: Batches of the epoch that are done.
        unfinished: The measurements of these batches.
        rewind: What happened, for callbacks.
    """

    done: int
    unfinished: UnfinishedEpoch
    rewind: Rewind


@final
class LoopGuard(LeftOutBatches):
    """Judges the losses of a loop on one device, and takes it back.

    Args:
        settings: The limits.
        parts: What it copies and restores.
        start: Where the training begins.

    Attributes:
        next_step: Optimizer steps after which :meth:`look` is due.
    """

    next_step: float

    def __init__(self, settings: Guards, parts: GuardedParts, start: Start) -> None:
        super().__init__(parts, start, settings)
        self._settings = settings
        self._ring = SnapshotRing(settings.snapshots, settings.memory)
        self._times = DigestTimes(start.position.global_step)
        self._judged = 0
        self.next_step = start.position.global_step

    def enter(self, epoch: int) -> None:
        """Begin an epoch, or continue it; an earlier one cannot be restored any more."""
        if epoch != self._epoch:
            self._ring.clear()
        super().enter(epoch)

    # --- Steps ---------------------------------------------------------------------------------

    def begin(self, first: int, losses: LossLog, scalars: ScalarLog) -> None:
        """Begin the steps of the epoch, or continue them behind its first batches.

        Raises:
            ValueError: The training cannot be kept in memory.
        """
        self._losses, self._scalars = losses, scalars
        losses.keep_for_judge()
        self._judged = int(losses.state()[1])
        if not len(self._ring):
            self.keep(first)
        else:
            self._times.run(self._parts.engine.global_step)

    def end(self, done: int) -> None:
        """Judge the end of the steps of an epoch, after ``done`` batches.

        Raises:
            Setback: A loss or a parameter is bad.
            DivergedError: A loss is not finite.
        """
        self.look(done, certain=True)
        self._times.pause(self._parts.engine.global_step)

    def look(self, done: int, *, certain: bool = False) -> None:
        """Judge the losses so far, and take a snapshot if one is due; between two steps.

        Args:
            done: Batches of the epoch that are done.
            certain: Wait for all losses of a device, and look at the parameters.

        Raises:
            Setback: A loss or a parameter is bad.
            DivergedError: A loss is not finite.
        """
        step = self._parts.engine.global_step
        due = step >= self.next_step and self._is_due(step)
        values = self._losses.to_judge(wait=certain or due)
        self._guard.judge(self._epoch, self._judged, values)
        self._judged += len(values)
        if certain and (broken := non_finite_parameters(self._parts.assembly.model)):
            what = f"{', '.join(broken[:3])} hold values that are not finite"
            raise Setback(what, self._guard.trained(self._epoch, self._judged - 1))
        if due:
            self.keep(done)

    def keep(self, done: int, *, alone: bool = False) -> None:
        """Take a snapshot of a state that was judged.

        Args:
            done: Batches of the epoch that are done.
            alone: Drop the earlier ones, because the training never goes back past this state.
        """
        began, parts = time.perf_counter(), self._parts
        if alone:
            self._ring.clear()
        parts.engine.present()
        extra = {
            "losses": self._losses.state(),
            "scalars": self._scalars.state(),
            "rule": self._guard.rule_state(),
            "scale": parts.rate.scale,
            "modes": modes(parts.assembly.model),
            "skipped": _skipped_steps(parts),
            "cached": self._loader.cached_samples,
        }
        step = parts.engine.global_step
        self._ring.take(parts.assembly.parts(extra), Position(self._epoch, done, step))
        self._times.taken(step, time.perf_counter() - began)
        self._plan()

    def _plan(self) -> None:
        """Plan the next snapshot."""
        step, every = self._parts.engine.global_step, self._settings.every
        self.next_step = self._times.next_step if every is None else (step // every + 1) * every

    def _is_due(self, step: int) -> bool:
        if self._settings.every is not None:
            return True
        due = self._times.is_due(step)
        self.next_step = self._times.next_step
        return due

    # --- Setbacks ------------------------------------------------------------------------------

    def go_back(self, problem: Setback | DivergedError, seconds: float) -> Restored | None:
        """Restore an earlier state, and leave out the batches that caused the problem.

        Args:
            problem: What happened.
            seconds: Time spent on the steps of the epoch.

        Returns:
            The restored state. None if there were too many attempts: nothing is restored, and
            :meth:`give_up` ends the training.
        """
        setback, parts = self._as_setback(problem), self._parts
        step = parts.engine.global_step
        earliest = self._ring.oldest.position.step
        decision = self._guard.decide(self._epoch, setback, earliest=earliest)
        if decision is None:
            return None
        snapshot = self._ring.newest_until(decision.batches[0], parts.assembly.model)
        rate = float(parts.assembly.optimizer.param_groups[0]["lr"])
        self._restore(snapshot)
        rewind = rewind_of(setback, decision, self._loader, step, parts.engine.global_step)
        self._records.decided(setback, decision, rewind, rate=rate)
        extra = snapshot.extra
        self._guard.load_rule(extra["rule"])
        known = UnfinishedEpoch(losses=extra["losses"], scalars=extra["scalars"], seconds=seconds)
        return Restored(snapshot.position.step, known, rewind)

    def give_up(self, problem: Setback | DivergedError) -> DivergedError:
        """Look for the first module that is not finite, and return the error for the end.

        It goes back once more, and trains the steps up to the bad batch with hooks.
        """
        setback, parts, epoch = self._as_setback(problem), self._parts, self._epoch
        step = parts.engine.global_step
        snapshot = self._ring.newest_until(setback.batch, parts.assembly.model)
        self._restore(snapshot)
        found = diagnosed(
            parts, self._loader, snapshot.position, until=setback.batch, skips=self.skips
        )
        told = self._guard.farewell(epoch, setback, found)
        self._records.given_up(told, step)
        return DivergedError(told, epoch=epoch, step=setback.batch)

    def _as_setback(self, problem: Setback | DivergedError) -> Setback:
        if isinstance(problem, Setback):
            return problem
        try:
            # A spike may have come first: the parameters that it left made this loss.
            self._guard.judge(self._epoch, self._judged, self._losses.unjudged())
        except Setback as earlier:
            return earlier
        batch = self._guard.trained(self._epoch, problem.step)
        broken = isinstance(self._losses, HostLossLog) and bool(
            non_finite_parameters(self._parts.assembly.model)
        )
        return Setback(problem.what, batch, broken=broken)

    def _restore(self, snapshot: Snapshot) -> None:
        parts = self._parts
        snapshot.restore(parts.assembly.parts({}))
        extra = snapshot.extra
        parts.rate.scale = float(extra["scale"])
        self._loader.drop_cached(int(extra["cached"]))
        LoopState(**extra["modes"]).apply_modes(parts.assembly.model)
        if (scaler := parts.engine.settings.scaler) is not None:
            scaler.skipped = int(extra["skipped"])
        parts.engine.global_step = snapshot.position.global_step
        self._times = DigestTimes(parts.engine.global_step)
        self._times.taken(parts.engine.global_step, 0.0)
        self._plan()


def _skipped_steps(parts: GuardedParts) -> int:
    scaler = parts.engine.settings.scaler
    return scaler.skipped if scaler is not None else 0
