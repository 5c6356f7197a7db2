"""The time after a training, booked until its process ends."""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING

from flodl.monitor.ledger import Account
from flodl.ranks.launch.interrupt import undisturbed

if TYPE_CHECKING:
    from flodl.monitor import Monitor
    from flodl.monitor.ledger import TimeLedger

_ended: tuple[int, TimeLedger, Monitor] | None = None
"""Process, ledger and monitor of the last training that has ended."""


def book_until_exit(ledger: TimeLedger, monitor: Monitor) -> None:
    """Book all time from now on to ``shutdown``, and renew the report when the process ends.

    Only the last training of a process counts, because the time before another one belongs to the
    program. In an interactive session the user decides when the process ends, so nothing is booked.
    """
    global _ended
    if hasattr(sys, "ps1"):
        return
    _ended = os.getpid(), ledger, monitor


def forget_ended() -> None:
    """Book nothing more to the training that ended last: another one begins."""
    global _ended
    _ended = None


def _book() -> None:
    # A forked child has a copy of the training, whose time is not its own.
    if _ended is not None and _ended[0] == os.getpid():
        _, ledger, monitor = _ended
        with undisturbed():
            ledger.lap(Account.SHUTDOWN)
            monitor.amend_ledger(ledger.seconds())


atexit.register(_book)
