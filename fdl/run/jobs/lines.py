"""The output of jobs side by side: every line behind the name of its job, on its own stream."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, TextIO

from fdl.base import output
from fdl.base.masking import KNOWN

# Cyan, magenta, yellow, green and blue; red stays the colour of errors.
_COLORS = (36, 35, 33, 32, 34)

_PROGRESS_S = 5.0
"""How often the state of a progress bar is printed, which writes over one line again and again."""

_LAST_OUTPUT_S = 1.0
"""How long the end of the output is waited for."""

# A program that never ends its line must not fill the memory.
_LONGEST = 1 << 20


class Printer:
    """Prints what jobs write, one whole line at a time.

    Attributes:
        problem: Why fdl's own output cannot be written any more, or None.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.problem: OSError | None = None
        self._names = list(names)
        self._width = max(map(len, names), default=0)
        self._lock = threading.Lock()

    def copy(self, source: BinaryIO, place: int, target: TextIO) -> None:
        """Copy a stream of the job at ``place`` until it ends, then print its last line.

        Secrets are masked.

        If the target cannot be written, the source is closed, as it is for a single command.
        """
        prefix, rest, printed = self._prefix(place, target), b"", time.monotonic()
        with source:
            try:
                for data in masked(source):
                    *whole, rest = (rest + data).replace(b"\r\n", b"\n").split(b"\n")
                    bar_is_due = b"\r" in rest and time.monotonic() - printed > _PROGRESS_S
                    if len(rest) > _LONGEST or bar_is_due:
                        whole.append(rest)
                        rest = b""
                    if whole:
                        self._print(whole, prefix, target)
                        printed = time.monotonic()
                if last := _seen(rest):
                    self._print([last], prefix, target)
            except OSError as problem:
                self.problem = self.problem or problem

    def _print(self, lines: Sequence[bytes], prefix: bytes, target: TextIO) -> None:
        text = b"".join(prefix + _seen(line) + b"\n" for line in lines)
        with self._lock:
            target.buffer.write(text)
            target.flush()

    def _prefix(self, place: int, target: TextIO) -> bytes:
        name = self._names[place]
        if output.color_on(target):
            name = f"\x1b[{_COLORS[place % len(_COLORS)]}m{name}\x1b[0m"
        blanks = " " * (self._width - len(self._names[place]))
        return f"{name}{blanks} | ".encode(target.encoding or "utf-8", "backslashreplace")


def masked(source: BinaryIO) -> Iterator[bytes]:
    """What a program writes, without secrets, as it arrives."""
    stream = KNOWN.stream()
    while data := os.read(source.fileno(), 1 << 16):
        if shown := stream.feed(data):
            yield shown
    if shown := stream.rest():
        yield shown


@contextmanager
def masked_output() -> Iterator[None]:
    """Mask the secrets in everything that this process and its children write."""
    sys.stdout.flush()
    sys.stderr.flush()
    copies = [_redirected(stream) for stream in (1, 2)]
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for place, kept, thread in copies:
            # The last writer of a pipe closes it, unless a daemon that the job left holds it.
            os.dup2(kept, place)
            thread.join(_LAST_OUTPUT_S)


def _redirected(stream: int) -> tuple[int, int, threading.Thread]:
    kept, (reader, writer) = os.dup(stream), os.pipe()
    os.dup2(writer, stream)
    os.close(writer)

    def copy() -> None:
        with os.fdopen(reader, "rb") as source:
            for data in masked(source):
                _write(kept, data)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return stream, kept, thread


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _seen(line: bytes) -> bytes:
    """What a terminal shows of a line that was written over: the last state of it."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def streams() -> tuple[TextIO, TextIO]:
    """Fdl's own stdout and stderr, after everything it has printed itself."""
    sys.stdout.flush()
    sys.stderr.flush()
    return sys.stdout, sys.stderr
