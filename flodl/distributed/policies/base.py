"""The loop that one rank runs from barrier to barrier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flodl.distributed.rank_worker import RankWorker


class PolicyLoop(ABC):
    """Decides which batches a rank trains and when the ranks average.

    Args:
        worker: Trains the batches.
    """

    def __init__(self, worker: RankWorker) -> None:
        self._worker = worker

    @abstractmethod
    def run_to_barrier(self) -> None:
        """Train until every batch before the barrier is trained and all ranks have the same model.

        If a rank was asked to stop (``worker.stops``), this returns earlier: on all ranks at the
        same batch, and with the same model.
        """
