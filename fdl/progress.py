"""How far a long job is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

from fdl import output

_REDRAW = 0.1
"""Seconds between two drawings of a bar."""

_LINE = 10.0
"""Seconds between two lines where there is no terminal."""

_WIDTH = 24
"""Cells of the bar itself."""


class Progress:
    """Reports one job on stderr; use it as a context manager.

    Calls may come from several threads as long as each value passed is the new total. ``-q``
    mutes it.

    Args:
        label: What is being done: ``libtorch 2.10.0 cu128``.
        total: How much there is to do; 0 when unknown.
        unit: ``bytes``, shown as MB with a rate, or a noun such as ``steps``, shown as a count.
        stream: Where to report; stderr when omitted.
    """

    def __init__(
        self, label: str, total: int = 0, unit: str = "bytes", stream: TextIO | None = None
    ) -> None:
        self.label = label
        self.total = total
        self.unit = unit
        self._stream = sys.stderr if stream is None else stream
        self._bar = self._stream.isatty()
        self._done = 0
        self._offset = 0
        self._began = self._reported = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if output.is_quiet():
            return
        if self._bar:
            self._draw()
            self._stream.write("\n")
        elif kind is None:
            self._stream.write(f"{self.text()}\n")
        self._stream.flush()

    def start(self, total: int, done: int = 0) -> None:
        """Say how much there is, and how much of it an earlier call had done already."""
        self.total = total
        self._done = self._offset = done
        self._began = time.monotonic()

    def update(self, done: int) -> None:
        """Say how much is done in all."""
        self._done = done
        now = time.monotonic()
        if output.is_quiet() or now - self._reported < (_REDRAW if self._bar else _LINE):
            return
        self._reported = now
        if self._bar:
            self._draw()
        else:
            self._stream.write(f"{self.text()}\n")
            self._stream.flush()

    def text(self) -> str:
        """One line: label, amount, share and, for bytes, the rate and what is left."""
        share = f" {100 * self._done // self.total}%" if self.total else ""
        if self.unit != "bytes":
            amount = f"{self._done}/{self.total}" if self.total else str(self._done)
            return f"{self.label}: {amount} {self.unit}{share}"
        amount = _megabytes(self._done)
        if self.total:
            amount = f"{amount} of {_megabytes(self.total)}"
        return f"{self.label}: {amount} MB{share}{self._pace()}"

    def _pace(self) -> str:
        seconds = time.monotonic() - self._began
        rate = (self._done - self._offset) / seconds if seconds > 0 else 0.0
        if rate <= 0:
            return ""
        left = (self.total - self._done) / rate if self.total else 0.0
        return f", {rate / 1e6:.1f} MB/s" + (f", {_clock(left)} left" if left >= 1 else "")

    def _draw(self) -> None:
        filled = _WIDTH * self._done // self.total if self.total else 0
        bar = f"[{'#' * filled}{' ' * (_WIDTH - filled)}] " if self.total else ""
        self._stream.write(f"\r\x1b[K{bar}{self.text()}")
        self._stream.flush()


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f}" if count < 100e6 else f"{count / 1e6:.0f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
