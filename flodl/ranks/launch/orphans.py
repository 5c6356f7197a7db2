"""End a rank when its launcher is gone: a killed launcher cannot end its ranks."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import final

from flodl import log
from flodl.ranks.launch.launcher import LAUNCHED_VARIABLE

FDL_VARIABLE = "FDL_PID"
"""Process id of the ``fdl`` that started torchrun."""

_LOOK = 0.5
"""Seconds between two checks of the launcher."""

_GRACE = 8.0
"""Seconds a rank has to stop at the next exchange, with a checkpoint, before it is killed."""

_watched = False


def end_with_launcher(environ: Mapping[str, str]) -> None:
    """End this process and its loader processes soon after its launcher has ended.

    A thread checks twice a second whether this process still has its original parent. On Linux it
    also checks whether torchrun still has the ``fdl`` that started it. Once one of them is gone,
    the rank gets SIGTERM, which makes it write a checkpoint and stop. Eight seconds later the rank
    ends in any case. In the first window the ranks need the store of torchrun; if torchrun is
    killed then, they end without a checkpoint.

    Does nothing on Windows, when called again, or if the launcher does not stay as long as its
    ranks (batch systems end the ranks themselves).

    Args:
        environ: Environment variables of this process.
    """
    global _watched
    if _watched or os.name != "posix" or LAUNCHED_VARIABLE not in environ:
        return
    _watched = True
    watch = _Watch(environ)
    threading.Thread(target=watch.run, name="flodl-lifeline", daemon=True).start()


@final
class _Watch:
    """Watches the processes that started this rank."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._parent = os.getppid()
        self._tells = environ.get("LOCAL_RANK") == "0"
        self._above = _line_to(environ.get(FDL_VARIABLE, ""), self._parent)

    def run(self) -> None:
        """Wait until a launcher is gone, then end this process."""
        while (gone := self._gone()) is None:
            time.sleep(_LOOK)
        with contextlib.suppress(OSError, ValueError):
            log.warning(f"process {gone}, which started this rank, is gone: the rank ends")
        self._ask(gone)
        time.sleep(_GRACE)
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(1)

    def _gone(self) -> int | None:
        """Return the process id of a launcher that has ended; None while all run."""
        if os.getppid() != self._parent:
            return self._parent
        return next((above for own, above in self._above if _parent_of(own) != above), None)

    def _ask(self, gone: int) -> None:
        """Ask for an orderly end, once: a second request would end the rank immediately."""
        if gone != self._parent:
            # torchrun still runs and would restart ranks that end, so torchrun gets the signal.
            if self._tells:
                with contextlib.suppress(OSError):
                    os.kill(self._parent, signal.SIGTERM)
        elif sys.platform != "linux" or multiprocessing.parent_process() is None:
            # On Linux, a process that torch has spawned gets SIGINT from the kernel instead.
            os.kill(os.getpid(), signal.SIGTERM)


def _line_to(first: str, parent: int) -> list[tuple[int, int]]:
    """Return every process from ``parent`` up to ``first`` with its own parent.

    Empty if ``first`` is not an ancestor: it belongs to another launch, or the system does not
    report parents.
    """
    line: list[tuple[int, int]] = []
    while first and str(parent) != first:
        above = _parent_of(parent)
        if above is None or above <= 1:
            return []
        line.append((parent, above))
        parent = above
    return line


def _parent_of(pid: int) -> int | None:
    """Return the parent of a process; None if it is gone or the system does not report it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            text = file.read()
    except OSError:
        return None
    # The program's name is in parentheses and may itself contain parentheses.
    return int(text.rpartition(")")[2].split()[1])
