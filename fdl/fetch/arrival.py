"""A file that grows while other threads read it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

_WINDOW = 256 << 10
"""Bytes to read at once if short pieces are requested."""


class StoppedError(Exception):
    """The job was stopped because of a failure elsewhere; never shown to the user."""


class EndOfFileError(Exception):
    """The requested bytes are beyond the end of the file."""


class Arrival:
    """How many bytes of a file have arrived, from its beginning and without a gap.

    Args:
        length: Size of the whole file; None until the end was seen.
        prefix: Bytes that are there already.
    """

    def __init__(self, length: int | None = None, prefix: int = 0) -> None:
        self._changed = threading.Condition()
        self._length = length
        self._prefix = prefix
        self._stopped = threading.Event()

    @property
    def stopped(self) -> bool:
        """Whether the job was stopped."""
        return self._stopped.is_set()

    @property
    def prefix(self) -> int:
        """Number of bytes that are there, from the beginning."""
        return self._prefix

    def advance(self, prefix: int) -> None:
        """Record that all bytes before an offset are there."""
        with self._changed:
            if prefix > self._prefix:
                self._prefix = prefix
                self._changed.notify_all()

    def end(self, length: int) -> None:
        """Record that the file is complete."""
        with self._changed:
            self._length = self._prefix = length
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop the job: threads that wait, or ask later, get :class:`StoppedError`."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()

    def check(self) -> None:
        """Raise :class:`StoppedError` if the job was stopped."""
        if self._stopped.is_set():
            raise StoppedError

    def pause(self, seconds: float) -> None:
        """Wait for some seconds; raise :class:`StoppedError` if the job is stopped meanwhile."""
        if self._stopped.wait(seconds):
            raise StoppedError

    def wait(self, offset: int) -> int:
        """Wait until the byte at ``offset``, or the end, is there.

        Returns:
            Number of bytes that are there, from the beginning: ``offset`` or less at the end.

        Raises:
            StoppedError: The job was stopped.
        """
        if not self._stopped.is_set() and self._prefix > offset:
            return self._prefix
        with self._changed:
            while not (self._stopped.is_set() or self._prefix > offset or self._is_whole()):
                self._changed.wait()
            if self._stopped.is_set():
                raise StoppedError
            return self._prefix

    def _is_whole(self) -> bool:
        return self._length is not None and self._prefix >= self._length


class Reader:
    """Reads a growing file and waits for missing bytes; use one for each thread.

    All methods raise :class:`StoppedError` if the job was stopped.
    """

    def __init__(self, path: Path, arrival: Arrival) -> None:
        self._file = path.open("rb", buffering=0)
        self._arrival = arrival
        self._at = 0
        self._window = b""
        self._window_begin = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def some(self, offset: int, most: int) -> bytes:
        """Between one and ``most`` bytes from ``offset``; none at the end."""
        there = self._arrival.wait(offset)
        if there <= offset:
            return b""
        if self._at != offset:
            self._file.seek(offset)
        data = self._file.read(min(most, there - offset)) or b""
        self._at = offset + len(data)
        return data

    def exactly(self, offset: int, size: int) -> bytes:
        """The ``size`` bytes from ``offset``.

        Raises:
            EndOfFileError: The file is shorter.
        """
        data = self.at_most(offset, size)
        if len(data) < size:
            raise EndOfFileError
        return data

    def short(self, offset: int, size: int) -> bytes:
        """The same as :meth:`exactly`, faster for many short pieces in sequence.

        Raises:
            EndOfFileError: The file is shorter.
        """
        begin = offset - self._window_begin
        if begin < 0 or begin + size > len(self._window):
            self._window = self.some(offset, _WINDOW)
            if len(self._window) < size:
                self._window += self.exactly(offset + len(self._window), size - len(self._window))
            self._window_begin, begin = offset, 0
        return self._window[begin : begin + size]

    def at_most(self, offset: int, size: int) -> bytes:
        """The ``size`` bytes from ``offset``, or fewer at the end of the file."""
        data = self.some(offset, size)
        while len(data) < size:
            more = self.some(offset + len(data), size - len(data))
            if not more:
                break
            data += more
        return data
