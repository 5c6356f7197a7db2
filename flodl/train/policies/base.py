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

    @abstractmethod
    def windows(self) -> tuple[int, tuple[int, ...]]:
        """Return the batches of the slowest rank between two averages, and those of each rank."""

    @abstractmethod
    def set_rate_place(self) -> None:
        """Let learning rates be those of the next step, between two steps."""
