"""The progress of an epoch: one line that updates on a terminal, a few lines in a pipe."""

from __future__ import annotations

import math
import os
import shutil
import sys
from typing import TYPE_CHECKING, Literal, TypeAlias, final

from flodl import log
from flodl.monitor.formats import format_eta, format_metric

if TYPE_CHECKING:
    from typing import TextIO

ProgressStyle: TypeAlias = Literal["line", "lines", "none"]

PERIODS: dict[ProgressStyle, float] = {"line": 0.1, "lines": 30.0, "none": math.inf}
"""Seconds between two updates: ten per second on a terminal, few in a log file."""


def progress_style(stream: TextIO | None) -> ProgressStyle:
    """Choose how progress is shown on a stream; ``none`` if the program shall be quiet."""
    if stream is None or not log.enabled(log.Verbosity.NORMAL):
        return "none"
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return "line"
    return "lines"


@final
class Progress:
    """Shows the progress of the current epoch.

    Plain text without colours. The line on a terminal is shortened to its width by whole fields. It
    leaves the cursor at its beginning.

    Args:
        num_epochs: Epochs of the training.
        style: See :func:`progress_style`.
        stream: The output stream; standard output if None.
    """

    def __init__(
        self, num_epochs: int, style: ProgressStyle, *, stream: TextIO | None = None
    ) -> None:
        self._num_epochs = num_epochs
        self._style = style
        self._stream = stream if stream is not None else sys.stdout
        self._shown = False
        self.begin(0, steps=0, done=0, batch_size=1, now=0.0)

    @property
    def period(self) -> float:
        """Seconds between two updates; infinite if none are wanted."""
        return PERIODS[self._style]

    def begin(
        self, epoch: int, *, steps: int | None, done: int, batch_size: int | None, now: float
    ) -> None:
        """Start an epoch.

        Args:
            epoch: Counted from 0.
            steps: Batches of the whole epoch; None if unknown.
            done: Batches done before, if the run was resumed.
            batch_size: Samples per batch; None if unknown.
            now: Seconds of a monotonic clock.
        """
        self._epoch, self._steps, self._first = epoch, steps, done
        self._batch_size, self._started = batch_size, now

    def update(self, done: int, loss: float | None, now: float) -> None:
        """Show that ``done`` batches of the epoch are done and that the newest loss is ``loss``."""
        if self._style == "line":
            width = shutil.get_terminal_size().columns - 1
            line = self.text(done, loss, now, width=width)
            self._write(f"{line.ljust(width) if self._shown else line}\r")
            self._shown = True
        elif self._style == "lines":
            log.msg(self.text(done, loss, now))

    def erase(self) -> None:
        """Clear the line, so that another one can be printed."""
        if self._shown:
            self._write(" " * (shutil.get_terminal_size().columns - 1) + "\r")
            self._shown = False

    def text(self, done: int, loss: float | None, now: float, *, width: int | None = None) -> str:
        """Return the line with as many of its fields as fit into ``width`` columns."""
        steps, epochs = self._steps, str(self._num_epochs)
        step = f"{done}" if steps is None else f"{done:>{len(str(steps))}}/{steps}"
        fields = [
            f"  epoch {self._epoch + 1:>{len(epochs)}}/{epochs}",
            f"step {step}",
        ]
        if loss is not None:
            fields.append(f"loss={format_metric(loss)}")
        elapsed, batches = now - self._started, done - self._first
        if elapsed > 0 and batches > 0:
            if self._batch_size is not None:
                fields.append(f"{_rate(batches * self._batch_size / elapsed)} samples/s")
            if steps is not None:
                left = steps - done + (self._num_epochs - self._epoch - 1) * steps
                fields.append(f"ETA {format_eta(left * elapsed / batches)}")
        line = fields[0]
        for field in fields[1:]:
            if width is not None and len(line) + 2 + len(field) > width:
                break
            line += "  " + field
        return line if width is None else line[: max(0, width)]

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone, training continues
            self._style, self._shown = "none", False


def _rate(per_second: float) -> str:
    """Format a rate with three digits: ``0.52``, ``14.3``, ``873``, ``12.3k``, ``4.56M``."""
    if per_second >= 1e6:
        per_second, unit = per_second / 1e6, "M"
    elif per_second >= 1e3:
        per_second, unit = per_second / 1e3, "k"
    else:
        unit = ""
    digits = 2 if per_second < 10 else 1 if per_second < 100 else 0
    return f"{per_second:.{digits}f}{unit}"
