"""Runs as lines for a terminal."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

from fdl.help.layout import cells, columns, cut
from fdl.run_directory.find import shortened
from fdl.run_directory.run import DEAD, RUNNING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fdl.output import Palette
    from fdl.run_directory.metrics import Metric
    from fdl.run_directory.run import Run

_GAP = "  "
_TROUBLE = ("failed", "diverged", DEAD)
_MINUTE, _HOUR = 60, 3600


def listing(runs: Sequence[Run], palette: Palette, metric: Metric | None = None) -> str:
    """One line per run: path, state, epochs, duration, last metrics, and the run it continues.

    On a terminal a line is cut at the edge; in a pipe it is complete.

    Args:
        runs: The runs, in the order of the lines.
        palette: Styles of the stream.
        metric: Its best value and epoch get a column instead of the last metrics.
    """
    heading = ("RUN", "STATE", "EPOCHS", "TIME", f"BEST {metric.name}" if metric else "LAST")
    rows = [heading]
    for run in runs:
        measured = _best(run, metric) if metric else _values(run.metrics.last())
        if run.resumed_from:
            origin = run.predecessor or run.resumed_from
            measured = f"{measured}{_GAP if measured else ''}(resumed {origin})"
        cell = (printable(str(shortened(run.path))), run.state, str(run.epochs))
        rows.append((*cell, duration(run.seconds), printable(measured)))
    if not runs:
        return ""
    lines = table(rows)
    width = columns(sys.stdout) if sys.stdout.isatty() else None
    if width:
        lines = [cut(line, width) for line in lines]
    styled = [palette.bold(lines[0])]
    for run, line in zip(runs, lines[1:], strict=True):
        styled.append(line.replace(f" {run.state} ", f" {_state(run.state, palette)} ", 1))
    return "".join(f"{line}\n" for line in styled)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with aligned columns."""
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    return [
        _GAP.join(
            text + " " * (width - cells(text)) for text, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _best(run: Run, metric: Metric) -> str:
    best = run.metrics.best(metric)
    return f"{number(best.value)} (epoch {best.epoch})" if best else ""


def _values(metrics: Mapping[str, float]) -> str:
    return _GAP.join(f"{name}={number(value)}" for name, value in metrics.items())


def _state(state: str, palette: Palette) -> str:
    if state == RUNNING:
        return palette.cyan(state)
    return palette.red(state) if state in _TROUBLE else state


def number(value: float) -> str:
    """A metric as in the program's own log: ``0``, ``2.50e-4``, ``0.1234``, ``12345.67``."""
    if value == 0:
        return "0"
    size = abs(value)
    if math.isfinite(value) and (size < 1e-3 or size >= 1e15):
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.4f}" if size < 100 else f"{value:.2f}"


def duration(seconds: float | None) -> str:
    """``12s``, ``2m05s``, ``3h12m``; empty for None."""
    if seconds is None:
        return ""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02}s"
    return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}m"


def size(count: int) -> str:
    """Bytes in the largest unit that gives a number of at least 1."""
    value, units = float(count), ["B", "KB", "MB", "GB", "TB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] in ("B", "KB") else f"{value:.1f} {units[0]}"


def printable(text: str) -> str:
    """Text as one line, without characters that control the terminal."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
