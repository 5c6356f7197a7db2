"""How much of the processor other programs use."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import final


@final
class OtherPrograms:
    """Counts what other programs use of the cores of this process, from now on.

    Args:
        stat: The counters of the kernel.

    Attributes:
        known: Whether the system counts it; Linux does.
        all_cores: Cores that this process may use; 0 if that is not known.
    """

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        used = _used_seconds(stat)
        self.known = used is not None
        self.all_cores = len(os.sched_getaffinity(0)) if self.known else 0
        self._used, self._own, self._began = used or 0.0, time.process_time(), time.perf_counter()

    def seconds(self) -> float:
        """Return how long it has counted."""
        return time.perf_counter() - self._began

    def cores(self) -> float:
        """Return how many cores other programs have used in the mean."""
        own = time.process_time() - self._own
        used = (_used_seconds(self._stat) or self._used) - self._used
        mean = max(0.0, used - own) / max(self.seconds(), 1e-9)
        return min(mean, self.all_cores)  # ticks are coarse


def _used_seconds(stat: Path) -> float | None:
    """Return the seconds that all programs have used; a program that gives way does not count.

    The kernel counts in ticks of 10 ms, so a difference over less than 50 ms says little.
    """
    try:
        mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        lines = stat.read_text("ascii").splitlines()
        gives_way = os.getpriority(os.PRIO_PROCESS, 0) > 0
        ticks = 0
        for words in (line.split() for line in lines):
            if words and words[0] in mine:
                user, nice, system, _, _, irq, soft_irq, stolen = map(int, words[1:9])
                ticks += user + system + irq + soft_irq + stolen + (nice if gives_way else 0)
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
