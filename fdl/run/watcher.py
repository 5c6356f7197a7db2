"""The watcher of a job: it ends the job when fdl itself is killed."""

from __future__ import annotations

import os
import sys

_DISMISSED = "."

_LOOKS = 10


class Watcher:
    """The watcher of one job.

    Args:
        mark: The mark of the job's processes, see :func:`fdl.run.program.marked`.
    """

    def __init__(self, mark: str) -> None:
        self._pid = 0
        # macOS does not show the environment of other processes.
        if sys.platform != "linux":
            return
        reading, self._pipe = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _watch(reading, self._pipe, mark)
        os.close(reading)

    def tell(self, what: object) -> None:
        """Name the first process of the job: its descendants need not carry the mark."""
        try:
            if self._pid:
                os.write(self._pipe, str(what).encode())
        # Somebody has killed the watcher.
        except BrokenPipeError:
            return

    def dismiss(self) -> None:
        """End the watcher; the job continues."""
        self.tell(_DISMISSED)
        if self._pid:
            os.close(self._pipe)
            os.waitpid(self._pid, 0)


def _watch(reading: int, writing: int, mark: str) -> None:
    try:
        os.setsid()
        os.close(writing)
        # A reader of fdl's output must not wait for this process.
        os.closerange(0, reading)
        os.closerange(reading + 1, 256)
        told = b""
        while part := os.read(reading, 64):
            told += part
        if not told.endswith(_DISMISSED.encode()):
            from fdl.run.tree import kill

            kill(int(told) if told else os.getpid(), mark, looks=_LOOKS)
    finally:
        os._exit(0)
