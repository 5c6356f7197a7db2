"""Runs as a table, and their values as text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fdl.base.tables import table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from fdl.run.batch.queue import Queued
    from fdl.runs.metrics import Metric
    from fdl.runs.run import Run

_MINUTE, _HOUR = 60, 3600


def queue(jobs: Sequence[Queued]) -> Table:
    """One row per job in the queue of a cluster."""
    rows = [
        (printable(one.id), one.state.lower(), printable(one.reason), printable(one.record.name))
        for one in jobs
    ]
    return table(rows, ("JOB", "STATE", "REASON OR NODES", "COMMAND OR RUN"))


def best_value(run: Run, metric: Metric) -> str:
    """The best value of a metric with its epoch; empty if the run did not measure it."""
    best = run.metrics.best(metric)
    return f"{number(best.value)} ({run.metrics.unit} {best.epoch})" if best else ""


def epochs(run: Run) -> str:
    """The number of epochs; empty if none are known."""
    return (
        "" if run.problem or (run.metrics.unit != "epoch" and not run.epochs) else str(run.epochs)
    )


def measured(metrics: Mapping[str, float]) -> str:
    """Metrics in one line."""
    return "  ".join(f"{name}={number(value)}" for name, value in metrics.items())


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


def printable(text: str) -> str:
    """Text as one line, without characters that control the terminal."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
