"""Let all ranks stop, or act on what people asked for, at the same batch."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, NoReturn, final

from flodl.ranks.launch.interrupt import InterruptRequest
from flodl.ranks.launch.launcher import LAUNCHED_VARIABLE, detect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flodl.ranks.group import Group
    from flodl.ranks.launch.interrupt import InterruptRequest
    from flodl.train.callbacks import TrainingRun
    from flodl.train.observers.mailbox import Mailbox, Wish


@final
class StopRequests:
    """The requests of all ranks.

    Args:
        run: Holds the request of a callback on this rank.
        mailbox: Holds what people asked this rank for.
        wake: Called when a signal arrives, so that the loop looks soon.

    Attributes:
        acts: People asked some rank for acts, and all ranks know it; the code that acts clears it.
        told: People asked to stop, and all ranks know it.
        interrupt: Holds the request of a signal to this process.
        agreed: A callback on some rank asked to stop, and all ranks know it.
        interrupted_by: The signal that a rank got, once all ranks know it.
    """

    def __init__(
        self, run: TrainingRun, mailbox: Mailbox, wake: Callable[[], object] | None = None
    ) -> None:
        self._run = run
        self._mailbox = mailbox
        self.acts = self.told = False
        self.interrupt = InterruptRequest(wake)
        self.agreed = False
        self.interrupted_by: signal.Signals | None = None

    def __bool__(self) -> bool:
        """Whether all ranks stop now."""
        return self.agreed or self.interrupted_by is not None

    def wishes(self) -> tuple[float, float, float, float]:
        """Return the requests of this rank, each 0 or 1: SIGINT, SIGTERM, a callback, acts."""
        asked = self.interrupt.asked_by
        return (
            float(asked == signal.SIGINT),
            # After the notice of a batch system, all ranks stop as after SIGTERM.
            float(asked not in (None, signal.SIGINT)),
            float(self._run.stopped is not None),
            float(self._mailbox.waiting),
        )

    def heed(self, wishes: Sequence[float]) -> None:
        """Apply the requests of all ranks, combined by sum or maximum."""
        interrupt, terminate, stop, acts = wishes
        if terminate or interrupt:
            self.interrupted_by = signal.SIGTERM if terminate else signal.SIGINT
        if stop:
            self.agree(["another rank stopped it"])
        if acts:
            self.acts = True

    def tell(self) -> None:
        """Stop as after Ctrl-C, because people asked for it; all ranks call this."""
        self.told, self.interrupted_by = True, self.interrupted_by or signal.SIGINT

    def agree(self, reasons: Sequence[str | None]) -> None:
        """Apply the callbacks' reasons to stop, one per rank; None means no request."""
        for reason in reasons:
            if reason is not None:
                self._run.stop(reason)  # the first one stays
                self.agreed = True

    def leave(self, message: str, by: signal.Signals | None) -> NoReturn:
        """End this process as the signal demands.

        Args:
            message: Text for people.
            by: The signal that all ranks obey; None for that of this process.

        Raises:
            KeyboardInterrupt: The signal was SIGINT.
            Terminated: The signal was SIGTERM.
        """
        self.interrupt.stop(message, by)


_PATIENCE = 10.0


@final
class BetweenSteps:
    """All ranks of a training between two steps.

    Args:
        group: The ranks.
        stops: Their requests.
        save_now: Saves a checkpoint, and returns why not, or an empty text; collective.
    """

    def __init__(self, group: Group, stops: StopRequests, save_now: Callable[[], str]) -> None:
        self._group, self._stops = group, stops
        self.save_now = save_now

    def is_interrupted(self) -> bool:
        """Whether a signal to some rank asks to stop; collective."""
        rows = self._group.gather(self._stops.wishes())
        interrupt, terminate, *_ = map(max, zip(*rows, strict=True))
        self._stops.heed((interrupt, terminate, 0.0, 0.0))
        return bool(self._stops)

    def share(self, wishes: Sequence[Wish]) -> Sequence[Wish]:
        """Return the wishes of rank 0; collective."""
        return self._group.from_first(lambda: list(wishes))


def end_launcher(group: Group, interrupt: InterruptRequest) -> None:
    """Let the launcher of the ranks end as after Ctrl-C, so that it starts none of them again.

    The launcher passes the signal on to the ranks. They wait for it, so that it does not interrupt
    the end of their work. Collective, after all files are written.
    """
    group.barrier()
    launched = detect(os.environ)
    if launched is None or LAUNCHED_VARIABLE not in os.environ:
        return
    if group.leads or launched.local_rank == 0:
        os.kill(os.getppid(), signal.SIGINT)
    limit = time.monotonic() + _PATIENCE
    while not interrupt.requested and time.monotonic() < limit:
        time.sleep(0.02)
