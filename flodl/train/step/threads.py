"""Fewer threads inside a step, the user's number outside of it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import final

import torch


@final
class ThreadLimit:
    """Lets operations use fewer threads inside the context.

    Args:
        threads: Largest number of threads.

    Attributes:
        overruled: Whether the program has set its own number inside the context; that number stays.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._before = 0
        self.overruled = False

    def __enter__(self) -> None:
        """Save the user's number, and set a smaller one."""
        self._before = torch.get_num_threads()
        if self._threads < self._before:
            torch.set_num_threads(self._threads)

    def __exit__(self, *_: object) -> None:
        """Restore the user's number."""
        now = torch.get_num_threads()
        if now != min(self._threads, self._before):
            self.overruled = True
        elif now != self._before:
            torch.set_num_threads(self._before)


def fewer_threads(*, single: bool) -> list[int]:
    """Return the numbers of threads to try: half, and one if a step with one is short enough."""
    threads = torch.get_num_threads()
    return sorted({threads // 2, *((1,) if single else ())} - {0, threads}, reverse=True)


def waited_seconds() -> float:
    """Return how long this thread was ready to run and had no core; 0 where nobody counts."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text("ascii").split()[1]) / 1e9
    return 0.0
