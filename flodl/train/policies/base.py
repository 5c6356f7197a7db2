"""The order in which a process trains batches, from barrier to barrier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flodl.train.run.training_state import Position

if TYPE_CHECKING:
    from flodl.train.loop import Loop


class PolicyLoop(ABC):
    """Decides which batches a rank trains and when the ranks average.

    Args:
        worker: Trains the batches.
    """

    def __init__(self, worker: Loop) -> None:
        self._worker = worker

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

    @abstractmethod
    def forget(self) -> None:
        """Never go back past this point: what guards would go back to is dropped."""

    @abstractmethod
    def guard_state(self) -> Mapping[str, Any]:
        """Return what guards know, as JSON values for a checkpoint; empty without guards."""


class SharedLoop(PolicyLoop):
    """The common part of the policies that share the batches among ranks, by a schedule."""

    @property
    def at_barrier(self) -> bool:
        """Whether every batch before the barrier is trained, or the ranks agreed to stop."""
        schedule = self._worker.schedule
        return schedule.complete > schedule.barrier or self._worker.stops.agreed

    def pass_barrier(self) -> None:
        """Continue with the batches after the barrier."""
        # Imported here: a process that trains alone plans nothing.
        from flodl.ranks.planning.scheduler import pass_barrier

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
        if self._worker.guard is not None:
            self._worker.guard.forget()

    def guard_state(self) -> Mapping[str, Any]:
        """Return what guards know."""
        left_out = self._worker.left_out
        return left_out.state() if left_out is not None else {}
