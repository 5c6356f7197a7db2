"""The guard of ranks that take every step together: all of them go back to the same step."""

from __future__ import annotations

from contextlib import suppress
from math import fsum, nan
from typing import TYPE_CHECKING, final

import torch

from flodl.errors import DivergedError
from flodl.train.observers.checkpoints import non_finite_parameters
from flodl.train.observers.guards.first_non_finite import FirstNonFinite, sentence
from flodl.train.observers.guards.guard import Setback
from flodl.train.observers.guards.rank_left_out import RankLeftOut
from flodl.train.observers.guards.rank_moment import RankMoment
from flodl.train.observers.guards.rewinding import rewind_of, tell_callbacks
from flodl.train.observers.guards.snapshots import SnapshotRing
from flodl.train.peak_memory import available_bytes
from flodl.train.run.loop_state import LoopState, modes
from flodl.train.run.training_state import Position
from flodl.train.step.tuned import TunedEngine
from flodl.train.step.tuning import Tuning

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flodl.ranks.planning.schedule import ScheduleState
    from flodl.train.loop import Loop
    from flodl.train.observers.guards.settings import Guards
    from flodl.train.observers.guards.snapshots import Snapshot
    from flodl.train.run.resume import Start

_EVERY = 100
"""Steps between two looks if the settings leave it to flodl: the clocks of ranks differ."""


@final
class RankGuard(RankLeftOut):
    """Judges the mean loss of all ranks, and takes them back; all methods are collective.

    Every rank keeps its own snapshots and computes the same decisions.

    Args:
        settings: The limits.
        worker: The rank.
        start: Where the training begins.
    """

    def __init__(self, settings: Guards, worker: Loop, start: Start) -> None:
        super().__init__(worker, start, settings)
        self._every = settings.every or _EVERY
        memory = settings.memory
        if memory is None:
            # Ranks may share a host. All keep equally many, so that they decide alike.
            own = available_bytes(torch.device("cpu")) // 2 // worker.group.world_size
            memory = int(min(row[0] for row in worker.group.gather([float(own)])))
        self._ring = SnapshotRing(settings.snapshots, memory)
        self._steps: list[tuple[int, int]] = []
        """First batch of each step since the last look, and the batches of this rank in it."""
        self._due = False
        self._last = 0
        """First batch of the last step that was taken."""
        worker.logs.keep_for_judge()

    # --- Steps ---------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop all snapshots: the training never goes back past this point."""
        self._ring.clear()

    def ready(self, schedule: ScheduleState) -> None:
        """Take a snapshot before a step, if one is due.

        Args:
            schedule: The state of the plan before this step.
        """
        if self._due or not len(self._ring):
            self._due = False
            worker = self._worker
            extra = {
                "rule": self._guard.rule_state(),
                "scale": worker.rate.steered.scale,
                "modes": modes(worker.model),
                "cached": worker.parts.loader.cached_samples,
            }
            done = schedule.position - schedule.complete * self._length
            position = Position(schedule.complete, done, worker.engine.global_step)
            moment = RankMoment.of(worker, schedule)
            self._ring.take(worker.parts.parts(extra), position, moment)

    def took(self, number: int, own: int | None, *, certain: bool) -> None:
        """Judge the steps since the last look, if it is time.

        Args:
            number: First batch of the step that was taken, counted through all epochs.
            own: Batches of this rank in it; None if the step was left out.
            certain: Look now, also at the parameters.

        Raises:
            Setback: A loss or a parameter is bad; on all ranks.
        """
        if own is not None:
            self._steps.append((number, own))
            self._last = number
        if not certain and len(self._steps) < self._every:
            return
        self._judge()
        self._due = True
        if certain and (broken := non_finite_parameters(self._worker.model)):
            what = f"{', '.join(broken[:3])} hold values that are not finite"
            raise Setback(what, self._last % self._length)

    def _judge(self) -> None:
        steps, self._steps = self._steps, []
        log = self._worker.logs.current
        values = log.losses.to_judge(wait=True) if log is not None else []
        mine = []
        for _, own in steps:
            mine.append(values[:own])
            values = values[own:]
        ranks = self._worker.group.gather_objects(mine)
        means = [_mean([loss for one in ranks for loss in one[at]]) for at in range(len(steps))]
        place = self._guard.first_bad(means)
        if place is not None:
            told = self._guard.told(means[place])
            raise Setback(told, steps[place][0] % self._length)

    # --- Setbacks ------------------------------------------------------------------------------

    def go_back(self, problem: Setback | DivergedError, numbers: Sequence[int], own: int) -> bool:
        """Restore an earlier state; return False if there were too many attempts.

        Args:
            problem: What happened.
            numbers: Batches of the step in which it happened.
            own: Batches of this rank in it.
        """
        worker = self._worker
        setback = self._setback = self._as_setback(problem, numbers, own)
        epoch, steps = numbers[0] // self._length, worker.engine.global_step
        earliest = self._ring.oldest.position.step
        decision = self._guard.decide(epoch, setback, earliest=earliest)
        if decision is None:
            return False
        rate = float(worker.parts.optimizer.param_groups[0]["lr"])
        snapshot = self._ring.newest_until(decision.batches[0], worker.model)
        self._restore(snapshot)
        moment = snapshot.kept
        assert isinstance(moment, RankMoment)  # noqa: S101 - `ready` keeps one
        worker.checkpoints.trace.rewind(moment.trace_steps)
        restored = snapshot.position.global_step
        rewind = rewind_of(setback, decision, worker.parts.loader, steps, restored)
        self._records.decided(setback, decision, rewind, rate=rate)
        tell_callbacks(worker.hooks, worker.run, rewind)
        return True

    def give_up(self, replay: Callable[[int], None], epoch: int) -> DivergedError:
        """Train up to the bad batch once more, and return the error that names the first module.

        Args:
            replay: Trains from the restored state up to this batch, counted through all epochs.
            epoch: Counted from 0.
        """
        worker, setback = self._worker, self._setback
        worker.checkpoints.trace.close()
        worker.hooks.watches_steps = False
        if isinstance(worker.engine, TunedEngine):
            worker.engine.use(Tuning())
        self._restore(self._ring.newest_until(setback.batch, worker.model))
        look = FirstNonFinite(worker.model, gradients=worker.plan.scaler is None)
        with look.watching(), suppress(DivergedError):
            replay(epoch * self._length + setback.batch)
        found = worker.group.gather_objects(look.found)
        rank = next((rank for rank, what in enumerate(found) if what), None)
        told = sentence(f"{found[rank]}, on rank {rank}" if rank is not None else "")
        text = self._guard.farewell(epoch, setback, told)
        self._records.given_up(text, worker.engine.global_step)
        return DivergedError(text, epoch=epoch, step=setback.batch)

    def _as_setback(
        self, problem: Setback | DivergedError, numbers: Sequence[int], own: int
    ) -> Setback:
        if isinstance(problem, Setback):
            return problem
        self._steps.append((numbers[0], own))
        try:
            # An earlier loss may be the reason, and on a GPU this one may be late.
            self._judge()
        except Setback as found:
            if found.batch == numbers[0] % self._length:
                found.broken = bool(non_finite_parameters(self._worker.model))
            return found
        return Setback(problem.what, numbers[0] % self._length)

    def _restore(self, snapshot: Snapshot) -> None:
        worker, extra, moment = self._worker, snapshot.extra, snapshot.kept
        assert isinstance(moment, RankMoment)  # noqa: S101 - `ready` keeps one
        snapshot.restore(worker.parts.parts({}))
        worker.rate.steered.scale = float(extra["scale"])
        worker.parts.loader.drop_cached(int(extra["cached"]))
        LoopState(**extra["modes"]).apply_modes(worker.model)
        worker.engine.global_step = snapshot.position.global_step
        self._guard.load_rule(extra["rule"])
        moment.restore(worker)
        self._steps.clear()
        self._due = False


def _mean(losses: Sequence[float]) -> float:
    return fsum(losses) / len(losses) if all(one - one == 0.0 for one in losses) else nan
