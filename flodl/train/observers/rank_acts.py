"""Acts of people on a training: rank 0 takes them, and all ranks carry them out together."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, final

from flodl.ranks.launch.launcher import detect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flodl.ranks.group import Group
    from flodl.ranks.launch.interrupt import InterruptRequest
    from flodl.train.observers.mailbox import Wish
    from flodl.train.observers.stop_requests import StopRequests

_ELASTIC = "TORCHELASTIC_RUN_ID"
"""Set in the ranks of torchrun, and in those that a program starts itself."""
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
    if launched is None or _ELASTIC not in os.environ:
        return
    if group.leads or launched.local_rank == 0:
        os.kill(os.getppid(), signal.SIGINT)
    limit = time.monotonic() + _PATIENCE
    while not interrupt.requested and time.monotonic() < limit:
        time.sleep(0.02)
