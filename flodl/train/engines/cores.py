"""Whether other programs want the cores of this machine, as Linux counts it."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import final

_WAITED = "/proc/thread-self/schedstat"
"""Nanoseconds of the calling thread: running, and ready to run without a core."""

_IDLE = "/proc/stat"


@final
class CoreUse:
    """How the calling thread got its core, and how many cores had nothing to do, since the start.

    On other systems, and where the kernel does not count, nothing was waited for and no core was
    idle.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._began = time.perf_counter()
        self._waited, self._idle = waited_seconds(), idle_seconds()

    def waited(self) -> float:
        """Return the part of the time in which the thread was ready and had no core."""
        return (waited_seconds() - self._waited) / self._seconds()

    def idle(self) -> float:
        """Return the mean number of cores that had nothing to do."""
        return (idle_seconds() - self._idle) / self._seconds()

    def _seconds(self) -> float:
        return max(1e-6, time.perf_counter() - self._began)


def waited_seconds() -> float:
    """Return how long the calling thread was ready to run and had no core, in seconds."""
    with suppress(OSError, ValueError, IndexError), open(_WAITED, "rb") as file:  # noqa: PTH123
        return int(file.read().split()[1]) / 1e9
    return 0.0


def idle_seconds() -> float:
    """Return the seconds in which cores of this machine had nothing to do, all cores together."""
    with suppress(OSError, ValueError, IndexError), open(_IDLE, "rb") as file:  # noqa: PTH123
        # user, nice, system, idle, waiting for a disk
        counted = file.readline().split()[1:6]
        return (int(counted[3]) + int(counted[4])) / os.sysconf("SC_CLK_TCK")
    return 0.0
