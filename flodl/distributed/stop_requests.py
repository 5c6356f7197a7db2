"""Stop all ranks at the same batch when one rank gets a signal or a callback asks to stop."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NoReturn, final

from flodl.launch.interrupt import InterruptRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flodl.train.callbacks import TrainingRun


@final
class StopRequests:
    """The requests of all ranks to stop.

    Args:
        run: Holds the request of a callback on this rank.

    Attributes:
        interrupt: Holds the request of a signal to this process.
        agreed: A callback on some rank asked to stop, and all ranks know it.
        interrupted_by: The signal that a rank got, once all ranks know it.
    """

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self.interrupt = InterruptRequest()
        self.agreed = False
        self.interrupted_by: signal.Signals | None = None

    def __bool__(self) -> bool:
        """Whether all ranks stop now."""
        return self.agreed or self.interrupted_by is not None

    def wishes(self) -> tuple[float, float, float]:
        """Return the requests of this rank, each 0 or 1: SIGINT, SIGTERM, a callback."""
        asked = self.interrupt.asked_by
        return (
            float(asked == signal.SIGINT),
            # After the notice of a batch system, all ranks stop as after SIGTERM.
            float(asked not in (None, signal.SIGINT)),
            float(self._run.stopped is not None),
        )

    def heed(self, wishes: Sequence[float]) -> None:
        """Apply the requests of all ranks, combined by sum or maximum."""
        interrupt, terminate, stop = wishes
        if terminate or interrupt:
            self.interrupted_by = signal.SIGTERM if terminate else signal.SIGINT
        if stop:
            self.agree(["another rank stopped it"])

    def agree(self, reasons: Sequence[str | None]) -> None:
        """Apply the callbacks' reasons to stop, one per rank; None means no request."""
        said = [reason for reason in reasons if reason is not None]
        if said:
            self._run.stop(said[0])
            self.agreed = True

    def leave(self, message: str) -> NoReturn:
        """End this process as the signal demands.

        Raises:
            KeyboardInterrupt: The signal was SIGINT.
            Terminated: The signal was SIGTERM.
        """
        self.interrupt.stop(message, self.interrupted_by)
