"""Stopping together: a signal or a callback on one rank is heeded by all at the same place."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NoReturn, final

from flodl.train.interrupt import InterruptRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flodl.train.callbacks import TrainingRun


@final
class StopRequests:
    """What the ranks have said about stopping.

    Args:
        run: Where callbacks of this rank ask for it.

    Attributes:
        interrupt: Where signals of this process ask for it.
        agreed: A callback of some rank asked, and all ranks know.
        interrupted_by: The signal that a rank got, once all ranks know.
    """

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self.interrupt = InterruptRequest()
        self.agreed = False
        self.interrupted_by: signal.Signals | None = None

    def __bool__(self) -> bool:
        """Whether all ranks stop here."""
        return self.agreed or self.interrupted_by is not None

    def wishes(self) -> tuple[float, float, float]:
        """What this rank has to say, for the others: 0 or 1 each."""
        asked = self.interrupt.asked_by
        return (
            float(asked == signal.SIGINT),
            float(asked == signal.SIGTERM),
            float(self._run.stopped is not None),
        )

    def heed(self, wishes: Sequence[float]) -> None:
        """Take in the wishes of all ranks, added up or the largest of each."""
        interrupt, terminate, stop = wishes
        if terminate or interrupt:
            self.interrupted_by = signal.SIGTERM if terminate else signal.SIGINT
        if stop:
            self.agree(["another rank stopped it"])

    def agree(self, reasons: Sequence[str | None]) -> None:
        """Take in why callbacks of the ranks want to stop; None of those that do not."""
        said = [reason for reason in reasons if reason is not None]
        if said:
            self._run.stop(said[0])
            self.agreed = True

    def leave(self, message: str) -> NoReturn:
        """End this process as the signal asked for.

        Raises:
            KeyboardInterrupt: It was SIGINT.
            Terminated: It was SIGTERM.
        """
        self.interrupt.stop(message, self.interrupted_by)
