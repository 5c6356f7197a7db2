"""Write series of points to files: a page with curves, a table, a log; independent of graphs."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from fdl.base import page_assets
from fdl.base.files import write_text
from fdl.base.suggest import nearest
from flodl.graph.history import Point

SeriesT = TypeVar("SeriesT", bound=Sequence[object])


def select(series: Mapping[str, SeriesT], names: Iterable[str] = ()) -> dict[str, SeriesT]:
    """Choose series: the named ones, in that order; without names, all with points, sorted.

    Raises:
        ValueError: A named series has no points, or no series has any.
    """
    filled = {name: series[name] for name in sorted(series) if series[name]}
    chosen = list(dict.fromkeys(names)) or list(filled)
    for name in chosen:
        if name not in filled:
            near = nearest(name, filled)
            known = f"did you mean {near}?" if near else f"there are: {list(filled)}"
            raise ValueError(f"metric {name!r} has no points yet (flush first); {known}")
    if not chosen:
        raise ValueError("there is nothing to write: no metric has points yet, flush first")
    return {name: filled[name] for name in chosen}


def page(
    path: str | os.PathLike[str],
    series: Mapping[str, Sequence[float]],
    *,
    title: str = "Training curves",
    unit: str = "",
) -> None:
    """Write an HTML page that draws the series; it needs only a browser.

    A click on a name shows only that curve or group. Names are grouped by the part before their
    last dot. Values that are not finite leave a gap and a mark on the axis.

    Args:
        path: File to write; an existing one is replaced, missing folders are created.
        series: Points by name, at least one each; the first point of each is epoch 1.
        title: Heading of the page.
        unit: Unit of the values, shown beside the heading.
    """
    from flodl.monitor.records import finite, to_json  # a graph needs no monitor until it plots

    curves = [
        {"name": name, "values": [finite(float(value)) for value in values]}
        for name, values in series.items()
    ]
    parts = {"title": title, "unit": unit, "curves": curves}
    write_text(path, page_assets.page(title, {name: to_json(part) for name, part in parts.items()}))


def table(path: str | os.PathLike[str], series: Mapping[str, Sequence[float]]) -> None:
    """Write a CSV file with the columns ``epoch`` (from 1) and one per series.

    Values have eight decimals; a series shorter than others ends with empty cells.
    """
    columns = list(series.values())
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["epoch", *series])
    for row in range(max(map(len, columns))):
        cells = (f"{values[row]:.8f}" if row < len(values) else "" for values in columns)
        rows.writerow([row + 1, *cells])
    write_text(path, text.getvalue())


def log(path: str | os.PathLike[str], total: int, series: Mapping[str, Sequence[Point]]) -> None:
    """Write one line per epoch: ``epoch   1  loss=0.5000  [1.2s  ETA 2.4s]``.

    The brackets hold the time that the epoch took. Before the last epoch they also hold the time
    for the remaining epochs at the mean pace so far.

    Args:
        path: File to write; an existing one is replaced, missing folders are created.
        total: Number of epochs that the run is to train.
        series: Points by name, at least one each; the first point of each is epoch 1.
    """
    lines = ["# flodl training log"]
    width = max(3, len(str(total)))
    before = 0.0
    for row in range(max(map(len, series.values()))):
        points = {name: line[row] for name, line in series.items() if row < len(line)}
        # If metrics are flushed one after the other, the last flush ends the epoch.
        now = max(before, *(point.seconds for point in points.values()))
        left = now / (row + 1) * (total - row - 1)
        lines.append(_log_line(f"{row + 1:>{width}}", points, now - before, left))
        before = now
    write_text(path, "\n".join(lines) + "\n")


def _log_line(epoch: str, points: Mapping[str, Point], seconds: float, left: float) -> str:
    from fdl.base.units import format_duration, format_eta, format_metric

    parts = [f"epoch {epoch}"]
    for name, point in points.items():
        printable = name if name.isprintable() else ascii(name)[1:-1]
        parts.append(f"{printable}={format_metric(point.value)}")
    eta = f"  ETA {format_eta(left)}" if left > 0 else ""
    return "  ".join([*parts, f"[{format_duration(seconds)}{eta}]"])
