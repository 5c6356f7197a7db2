"""The lines of a file that a run writes, as they arrive."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from fdl.base.errors import FdlError
from fdl.base.own_files import open_own, read_own
from fdl.runs.run import METRICS, RUNNING, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fdl.runs.run import Run

_PAUSE_SECONDS = 0.2
# Reading a run's state opens files and asks the system. A delay of half a second is not noticed.
_LOOKS_PER_STATE = 3


def last_lines(file: Path, count: int) -> list[str]:
    """The last lines of a run's file, without line ends; of a table also its heading.

    Raises:
        FdlError: The file cannot be read.
    """
    try:
        text = read_own(file, "replace")
    except OSError as problem:
        run = file.parent.name
        raise FdlError(
            f"{run} has no {file.name} to read: {problem.strerror}", hint=f"fdl runs show {run}"
        ) from None
    return _end(text.splitlines(), file, count)


def _end(lines: list[str], file: Path, count: int) -> list[str]:
    end = lines[-count:] if count > 0 else []
    if file.name == METRICS and len(end) < len(lines):
        return [lines[0], *end]
    return end


def follow(
    run: Run, file: Path, count: int, pause: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Yield the lines of :func:`last_lines`, then every new line, until the run has ended.

    A rewritten file is read from its beginning; the file may not exist yet.
    """
    source = _Growing(file)
    yield from _end(source.lines(), file, count)
    looks = 0
    while True:
        looks += 1
        current = read(run.path) if looks % _LOOKS_PER_STATE == 1 else run
        # Read after the state, so that everything the run wrote before its end is there.
        yield from source.lines(rest=current is None or current.state != RUNNING)
        if current is None or current.state != RUNNING:
            return
        pause(_PAUSE_SECONDS)


class _Growing:
    """A text file that grows, or is replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._partial = b""

    def lines(self, *, rest: bool = False) -> list[str]:
        """The complete lines since the last call; with ``rest`` also an incomplete last one."""
        try:
            with open_own(self._path) as stream:
                status = os.fstat(stream.fileno())
                identity = (status.st_dev, status.st_ino)
                if identity != self._file or status.st_size < self._offset:
                    self._file, self._offset, self._partial = identity, 0, b""
                stream.seek(self._offset)
                data = stream.read()
        except OSError:
            data = b""
        self._offset += len(data)
        *whole, self._partial = (self._partial + data).split(b"\n")
        if rest and self._partial:
            whole.append(self._partial)
            self._partial = b""
        return [line.decode("utf-8", "replace").rstrip("\r") for line in whole]
