"""What drives one rank from barrier to barrier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flodl.distributed.worker import RankWorker


class PolicyLoop(ABC):
    """Decides which batches a rank trains and when the ranks agree.

    Args:
        worker: Trains them.
    """

    def __init__(self, worker: RankWorker) -> None:
        self._worker = worker

    @abstractmethod
    def run_to_barrier(self) -> None:
        """Train until every batch before the barrier is trained and all ranks have one model.

        Returns earlier, on all ranks at the same place and with one model, where a rank was asked
        to stop (``worker.stops``).
        """
