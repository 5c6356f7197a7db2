"""The progress of an epoch: a bar on a terminal, a few lines in a pipe."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, final

from fdl.base.units import format_eta, format_metric, printable
from flodl import log, terminal
from flodl.terminal import BarLine, Style

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

PERIODS: dict[Style, float] = {"bar": 0.2, "lines": 30.0, "none": math.inf}
"""Seconds between two updates: five per second on a terminal, few in a log file."""


@final
class Progress:
    """Shows the progress of the current epoch.

    Attributes:
        epoch: The current epoch, counted from 0.
        steps: Batches of the whole epoch; None if unknown.

    Args:
        num_epochs: Epochs of the training.
        style: See :func:`flodl.terminal.style_of`.
        stream: The output stream; standard output if None.
    """

    def __init__(self, num_epochs: int, style: Style, *, stream: TextIO | None = None) -> None:
        self._num_epochs = num_epochs
        self._style = style
        self._stream = stream if stream is not None else sys.stdout
        self._display: terminal.Display | None = None
        self.begin(0, steps=0, done=0, batch_size=1, now=0.0)

    @property
    def period(self) -> float:
        """Seconds between two updates; infinite if none are wanted."""
        return PERIODS[self._style]

    def open(self) -> None:
        """Take the last line of the terminal, if the output stream is one."""
        self._display = terminal.open_display(self._stream, self._style)
        if self._display is not None:
            self._display.tell("preparing the training")

    def close(self) -> None:
        """Clear the line and give the terminal back; it may be called again."""
        if self._display is not None:
            terminal.close_display(self._display)
            self._display = None

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
        self.epoch, self.steps, self._first = epoch, steps, done
        self._batch_size, self._started = batch_size, now
        if self._display is not None:
            self._display.show(replace(self.line(done, None, {}, now), note="reading data"))

    def skip(self, seconds: float) -> None:
        """Leave out a pause of this length: it does not count for speed and remaining time."""
        self._started += seconds

    def end(self, note: str) -> None:
        """Show that all steps of the epoch are done, and what follows."""
        if self._display is None:
            return
        if self.steps is None:
            self._display.tell(note)
        else:
            line = self.line(self.steps, None, {}, self._started)
            self._display.show(replace(line, note=note))

    def settle(self) -> None:
        """End the statuses of an output stream that gets lines: steps are being done."""
        if self._style == "lines":
            self.close()

    def update(
        self, done: int, loss: float | None, scalars: Mapping[str, float], now: float
    ) -> None:
        """Show that ``done`` batches of the epoch are done.

        Args:
            done: Batches of the epoch.
            loss: The newest loss.
            scalars: The newest values of the other metrics.
            now: Seconds of a monotonic clock.
        """
        if self._style == "lines":
            log.msg(self.text(done, loss, now))
        elif self._display is not None:
            self._display.show(self.line(done, loss, scalars, now))

    def line(
        self, done: int, loss: float | None, scalars: Mapping[str, float], now: float
    ) -> BarLine:
        """Return the line with the bar."""
        values = [] if loss is None else [f"loss={format_metric(loss)}"]
        values += [f"{printable(name)}={format_metric(at)}" for name, at in scalars.items()]
        rate, eta = self._speed(done, now)
        unknown = self.steps is None
        return BarLine(
            self._head(),
            f"{done} steps" if unknown else self._count(done),
            None if unknown else done / max(1, self.steps or 0),
            values,
            rate,
            eta,
        )

    def text(self, done: int, loss: float | None, now: float) -> str:
        """Return the line for a log file."""
        fields = [self._head(), f"step {self._count(done)}"]
        if loss is not None:
            fields.append(f"loss={format_metric(loss)}")
        return "  " + "  ".join([*fields, *filter(None, self._speed(done, now))])

    def _head(self) -> str:
        epochs = str(self._num_epochs)
        return f"epoch {self.epoch + 1:>{len(epochs)}}/{epochs}"

    def _count(self, done: int) -> str:
        steps = self.steps
        return f"{done}" if steps is None else f"{done:>{len(str(steps))}}/{steps}"

    def _speed(self, done: int, now: float) -> tuple[str, str]:
        """Return the speed and the remaining time of the training; empty if unknown."""
        rate, eta = self.speed(done, now)
        return (
            f"{_rate(rate)} samples/s" if rate is not None else "",
            f"ETA {format_eta(eta)}" if eta is not None else "",
        )

    def speed(self, done: int, now: float) -> tuple[float | None, float | None]:
        """Return samples per second, and the remaining seconds; None if unknown.

        Args:
            done: Batches of the epoch.
            now: Seconds of a monotonic clock.
        """
        elapsed, batches, steps = now - self._started, done - self._first, self.steps
        if elapsed <= 0 or batches <= 0:
            return None, None
        rate = eta = None
        if self._batch_size is not None:
            rate = batches * self._batch_size / elapsed
        if steps is not None:
            left = steps - done + (self._num_epochs - self.epoch - 1) * steps
            eta = left * elapsed / batches
        return rate, eta


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
