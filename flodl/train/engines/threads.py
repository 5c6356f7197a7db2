"""Fewer threads inside of a step, the user's number outside of it."""

from __future__ import annotations

from typing import final

import torch


@final
class ThreadLimit:
    """Lets operations use fewer threads between two calls.

    Args:
        threads: At most so many.

    Attributes:
        overruled: Whether the program has set a number of its own meanwhile; that one stays.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._before = 0
        self.overruled = False

    def __enter__(self) -> None:
        """Note the user's number, and go below it."""
        self._before = torch.get_num_threads()
        if self._threads < self._before:
            torch.set_num_threads(self._threads)

    def __exit__(self, *_: object) -> None:
        """Put the user's number back."""
        now = torch.get_num_threads()
        if now != min(self._threads, self._before):
            self.overruled = True
        elif now != self._before:
            torch.set_num_threads(self._before)


def fewer_threads() -> list[int]:
    """Return the numbers of threads that a short step may be faster with, the larger first."""
    threads = torch.get_num_threads()
    return sorted({1, threads // 2} - {0, threads}, reverse=True)
