"""The order in which a process trains batches, from barrier to barrier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flodl.data import DataLoader
from flodl.train.observers.guards.left_out import LeftOut
from flodl.train.observers.guards.loss_guard import LossGuard
from flodl.train.observers.guards.rewinding import tell_callbacks
from flodl.train.policies.moment import Moment
from flodl.train.step.eager import EagerEngine
from flodl.train.step.tuned import TunedEngine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flodl.train.loop import Loop
    from flodl.train.observers.guards.first_non_finite import FirstNonFinite
    from flodl.train.observers.guards.guard import Setback
    from flodl.train.observers.guards.loss_guard import Losses
    from flodl.train.run.training_state import Position
    from flodl.train.step.base import StepEngine


class PolicyLoop(ABC):
    """Decides which batches a rank trains and when the ranks average.

    Args:
        worker: Trains the batches.

    Attributes:
        guard: Takes all ranks back after a setback; None without guards.
        left_out: What guards leave out; None if it is nothing.
    """

    guard: LossGuard | None
    left_out: LeftOut | None

    def __init__(self, worker: Loop) -> None:
        self._worker = worker

    def _watch(self, batches_per_step: int) -> None:
        """Begin to judge the losses, if that is asked for.

        Args:
            batches_per_step: Batches of all ranks in one optimizer step.
        """
        worker, place = self._worker, self.place()
        plan, start = worker.plan, worker.start
        given = plan, worker.group, worker.parts, worker.rate, start, (place.epoch, place.step)
        self.guard = self.left_out = None
        if plan.guards is not None:
            worker.logs.keep_for_judge()
            self.left_out = self.guard = LossGuard(
                *given, batches_per_step=batches_per_step, settings=plan.guards,
                engine=worker.engine, guarded=self,
            )  # fmt: skip
        elif not isinstance(worker.parts.batches, DataLoader):
            return  # guards refuse data that can only be iterated
        elif worker.group.broadcast_object(start.source is not None):
            left_out = LeftOut(*given, batches_per_step=batches_per_step)
            if left_out.tell_repeated(start.source):
                self.left_out = left_out

    @abstractmethod
    def run_to_barrier(self) -> None:
        """Train until every batch before the barrier is trained and all ranks have the same model.

        If a rank was asked to stop (``worker.stops``), this returns earlier: on all ranks at the
        same batch, and with the same model.
        """

    @property
    @abstractmethod
    def at_barrier(self) -> bool:
        """Whether every batch before the barrier is trained, or the ranks agreed to stop."""

    @abstractmethod
    def pass_barrier(self) -> None:
        """Continue with the batches after the barrier."""

    @abstractmethod
    def place(self) -> Position:
        """Return complete epochs, batches of the next one, and steps as one process has them."""

    @abstractmethod
    def told_place(self) -> str:
        """Return how much is trained, for people."""

    def forget(self) -> None:
        """Never go back past this point: what guards would go back to is dropped."""
        if self.guard is not None:
            self.guard.forget()

    def guard_state(self) -> Mapping[str, Any]:
        """Return what guards know, as JSON values for a checkpoint; empty without guards."""
        return self.left_out.state(self.place().epoch) if self.left_out is not None else {}

    # --- Going back ----------------------------------------------------------------------------

    @abstractmethod
    def losses(self, *, wait: bool | None) -> Losses:
        """Return the losses of all ranks that were not judged yet; collective."""

    def moment(self) -> Moment:
        """Return everything that is counted, between two steps."""
        return Moment.of(self._worker, self._worker.checkpoints.trace.steps)

    def return_to(self, moment: Moment) -> None:
        """Go back to a moment; model and optimizer are there already."""
        moment.restore(self._worker)

    @abstractmethod
    def is_left(self, moment: Moment, epoch: int, batch: int) -> bool:
        """Whether a batch was neither trained nor passed over at a moment."""

    @abstractmethod
    def train_again(self, setback: Setback, look: FirstNonFinite) -> str:
        """Train up to the batch of a setback, or until a look finds something; return where."""

    def _go_back(self, guard: LossGuard, setback: Setback) -> None:
        """Continue from an earlier state, on all ranks.

        Raises:
            DivergedError: There were too many attempts; on all ranks.
        """
        worker = self._worker
        rewind = guard.go_back(setback)
        if rewind is None:
            # The steps that are trained again do not belong to it.
            worker.checkpoints.trace.close()
            raise guard.give_up(setback) from None
        tell_callbacks(worker.hooks, worker.run, rewind)

    @contextmanager
    def _plainly(self) -> Iterator[StepEngine]:
        """Take steps that call hooks, as compiled code does not, and tell nobody.

        The engine of the training would take plain steps for its decision, and keep that for the
        next run.
        """
        worker, engine = self._worker, self._worker.engine
        watches, worker.hooks.watches_steps = worker.hooks.watches_steps, False
        engine.close()
        if isinstance(engine, TunedEngine):
            worker.engine = EagerEngine(worker.model, worker.parts.optimizer, engine.settings)
            worker.engine.set_schedule(worker.rate.steered.schedule)
            worker.engine.global_step = engine.global_step
        try:
            yield worker.engine
        finally:
            worker.engine, worker.hooks.watches_steps = engine, watches

    @abstractmethod
    def windows(self) -> tuple[int, tuple[int, ...]]:
        """Return the batches of the slowest rank between two averages, and those of each rank."""

    @abstractmethod
    def set_rate_place(self) -> None:
        """Let learning rates be those of the next step, between two steps."""
