"""A small process that ends the job when fdl is killed with SIGKILL; Linux only.

It is a fork of fdl in a session of its own, so a key press does not reach it. It waits for the end
of a pipe that only fdl holds open.
"""

from __future__ import annotations

import os


class Watcher:
    """The watcher of one job."""

    __slots__ = ("_pid", "_pipe")

    def __init__(self, child: int, mark: str) -> None:
        reading, self._pipe = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _watch(reading, child, mark)
        os.close(reading)

    def dismiss(self) -> None:
        """End the watcher; the job continues."""
        os.write(self._pipe, b".")
        os.close(self._pipe)
        os.waitpid(self._pid, 0)


def _watch(reading: int, child: int, mark: str) -> None:
    try:
        os.setsid()
        # A reader of fdl's output must not wait for this process.
        os.closerange(0, reading)
        os.closerange(reading + 1, 256)
        if not os.read(reading, 1):
            from fdl.run.tree import kill

            kill(child, mark)
    finally:
        os._exit(0)
