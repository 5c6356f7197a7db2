"""The time ledger of a run: every second is booked to exactly one account.

The ledger works like a stopwatch with lap times. Code that ends a piece of work names its account,
and all the time since the previous lap goes there. So no time is counted twice or lost between two
measurements.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, final

from fdl.base.run_record import started_ticks
from fdl.base.units import counted, format_duration
from flodl.terminal import aligned


class Account(StrEnum):
    """What the time was used for."""

    IMPORT = "import"
    """Starting Python and importing modules."""
    SETUP = "setup"
    """Building the model, the optimizer and the data loader."""
    DATA = "data"
    """Waiting for the next batch."""
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    COMPILE = "compile"
    """Compiling or capturing a step while training waits for it."""
    CHECKPOINT = "checkpoint"
    """The part of saving that the training thread waits for."""
    EVALUATION = "evaluation"
    LOGGING = "logging"
    """Passing records to the monitor, and callbacks."""
    SYNC = "sync"
    """Waiting for other devices or ranks."""
    IDLE = "idle"
    """Waiting for reasons outside the run, such as a pause."""
    SHUTDOWN = "shutdown"
    """After the training until the process ends: last files, the program's own code, Python."""


@final
class TimeLedger:
    """Books the time of one training thread.

    A lap takes about as long as three readings of the clock. In a hot loop, keep the members of
    :class:`Account` in local names: looking one up on the class may take longer than the lap.

    Args:
        clock: Seconds that never decrease.

    Attributes:
        lap: ``lap(account)`` books all the time since the last lap (at first: since the ledger was
            made) to `account`. Only one thread may call it; any thread may read the sums.
    """

    lap: Callable[[Account], None]

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        seconds = dict.fromkeys(Account, 0.0)
        last = clock()

        # A closure, because reading attributes of self would take as long as reading the clock.
        def lap(account: Account) -> None:
            nonlocal last
            now = clock()
            seconds[account] += now - last
            last = now

        self.lap = lap
        self._seconds = seconds
        self._earlier: list[dict[str, float]] = []

    @classmethod
    def since_process_start(cls) -> TimeLedger:
        """Return a ledger that has booked the time since the process started to ``import``.

        That time belongs to the first training of a program. The ledger starts now in later
        calls, and in an interactive session, where the user was idle before. It also starts now on
        systems that do not report the start of a process.
        """
        global _start_is_booked
        ledger = cls()
        if not _start_is_booked and not hasattr(sys, "ps1"):
            age = _process_age()
            # Continue from here: asking for the age may take a tenth of a second if it triggers
            # Python's garbage collector, and the age already includes that time.
            ledger.lap(Account.IMPORT)
            ledger._seconds[Account.IMPORT] = age
        _start_is_booked = True
        return ledger

    @property
    def total(self) -> float:
        """Booked seconds of this session: from the start to the last lap."""
        return math.fsum(self._seconds.values())

    def seconds(self) -> dict[str, float]:
        """Return the seconds of this session by account, in the order of :class:`Account`."""
        return {account.value: spent for account, spent in self._seconds.items()}

    def earlier(self) -> dict[str, float]:
        """Return the seconds of earlier sessions by account; empty for a first session."""
        sums: dict[str, float] = {}
        for session in self._earlier:
            for account, spent in session.items():
                sums[account] = sums.get(account, 0.0) + spent
        return sums

    def table(self) -> str:
        """Return lines for a terminal: accounts with time, the largest first, and the total.

        A resumed run has a second pair of columns for the earlier sessions.
        """
        earlier = self.earlier()
        columns = [("this session" if earlier else "", self.seconds())]
        if earlier:
            columns.append((counted(len(self._earlier), "earlier session"), earlier))
        names = {name for _, sums in columns for name, spent in sums.items() if spent > 0}
        weight = {name: math.fsum(sums.get(name, 0.0) for _, sums in columns) for name in names}
        ordered = sorted(names, key=lambda name: (-weight[name], name))
        lines = [["time", *(title for title, _ in columns)]]
        lines += [[name, *(_part(sums, name) for _, sums in columns)] for name in ordered]
        lines.append(["total", *(_part(sums, None) for _, sums in columns)])
        return "\n".join(aligned(lines))

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint as JSON: seconds of every session, this one last."""
        return {"sessions": [*(dict(one) for one in self._earlier), self.seconds()]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over the sessions of a run to continue; this session's time stays separate.

        Raises:
            ValueError: `state` does not come from :meth:`state_dict`.
        """
        sessions = state.get("sessions")
        if not isinstance(sessions, list):
            raise ValueError(
                f"the time ledger of the checkpoint has no list 'sessions' but {sessions!r}; "
                "pass what TimeLedger.state_dict() returned"
            )
        self._earlier = [_checked_session(session) for session in sessions]


_start_is_booked = False


def _part(sums: Mapping[str, float], name: str | None) -> str:
    """Return a cell: a time and its share of the column; without a name, the sum."""
    total = math.fsum(sums.values())
    spent = total if name is None else sums.get(name, 0.0)
    share = 100 * spent / total if total > 0 else 0.0
    return f"{format_duration(spent):>7}  {share:5.1f} %"


def _checked_session(session: object) -> dict[str, float]:
    if not isinstance(session, Mapping) or not all(
        isinstance(name, str)
        and isinstance(spent, int | float)
        and not isinstance(spent, bool)
        and math.isfinite(spent)
        and spent >= 0
        for name, spent in session.items()
    ):
        raise ValueError(
            f"the time ledger of the checkpoint holds {session!r}; expected the seconds of one "
            "session by account, as TimeLedger.state_dict() returns them"
        )
    return {name: float(spent) for name, spent in session.items()}


def _process_age() -> float:
    """Return the seconds since the operating system started this process."""
    ticks = started_ticks(os.getpid())
    if ticks is not None:
        started = ticks / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    import psutil

    return max(0.0, time.time() - float(psutil.Process().create_time()))
