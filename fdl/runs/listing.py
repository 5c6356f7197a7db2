"""Several runs as a table on a terminal, in a pipe, or as CSV."""

from __future__ import annotations

import csv
import io
import math
from datetime import datetime
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from fdl.base.tables import TROUBLE, table
from fdl.base.units import duration, format_metric as number, in_json, printable
from fdl.runs.describe import best_value, epochs, measured, names_of
from fdl.runs.find import shortened
from fdl.runs.metrics import Metric
from fdl.runs.quantity import BEST, FACT, LAST, SETTING, Known, Quantity, plain
from fdl.runs.run import DAMAGED, DEAD, RUNNING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from fdl.run.batch.queue import Queued
    from fdl.runs.run import Run

_STYLES = {
    RUNNING: "cyan",
    "failed": TROUBLE,
    "diverged": TROUBLE,
    DEAD: TROUBLE,
    DAMAGED: TROUBLE,
}
_GAP = 2
_WIDEST = 24
"""A setting with a longer value, such as a path, takes the room of several others."""

CSV_FACTS = (
    "name", "path", "state", "started", "finished", "seconds", "epochs", "tags", "note",
    "resumed_from", "imported_from",
)  # fmt: skip
"""The first columns of the CSV of all columns."""


def queue(jobs: Sequence[Queued]) -> Table:
    """One row per job in the queue of a cluster."""
    rows = [
        (printable(one.id), one.state.lower(), printable(one.reason), printable(one.name))
        for one in jobs
    ]
    return table(rows, ("JOB", "STATE", "REASON OR NODES", "COMMAND OR RUN"))


def in_pipe(runs: Sequence[Run], metric: Metric | None = None) -> Table:
    """One row per run: path, state, epochs, duration, last metrics, tags, the run it continues.

    The best value and epoch of ``metric`` get a column instead of the last metrics.
    """
    rows = []
    for run in runs:
        values = best_value(run, metric) if metric else measured(run.last_metrics)
        parts = [run.title if run.title != run.name else "", values, run.problem]
        if run.notes.tags:
            parts.append(f"[{','.join(run.notes.tags)}]")
        if run.resumed_from:
            parts.append(f"(resumed {run.predecessor or run.resumed_from})")
        rows.append(
            (
                printable(str(shortened(run.path))),
                _state(run),
                epochs(run),
                duration(run.seconds),
                printable("  ".join(filter(None, parts))),
            )
        )
    last = f"BEST {metric.name}" if metric else "LAST"
    return table(rows, ("RUN", "STATE", "EPOCHS", "TIME", last), right=(2, 3))


def in_columns(runs: Sequence[Run], columns: Sequence[Quantity]) -> Table:
    """One row per run with the columns that were asked for, behind its name."""
    named = any(one.kind == FACT and one.name in ("name", "path") for one in columns)
    heads = [one.spelling for one in columns]
    marked = [_marked(one, runs) for one in columns]
    cells = [[column[at] for column in marked] for at in range(len(runs))]
    right = {place for place, one in enumerate(columns) if one.is_number}
    if not named:
        names = names_of(runs)
        heads = ["RUN", *heads]
        cells = [[name, *row] for name, row in zip(names, cells, strict=True)]
        right = {place + 1 for place in right}
    return table(cells, heads, right=right)


def on_terminal(
    runs: Sequence[Run], width: int, metric: Metric | None = None
) -> tuple[Table, list[str]]:
    """One row per run, with as many metrics and differing settings as fit on the terminal.

    Args:
        runs: The runs, in the order of the rows.
        width: Columns of the terminal.
        metric: A metric whose best value comes first.

    Returns:
        The table, and the names of the metrics and settings that did not fit.
    """
    names = names_of(runs)
    states = [_state(run) for run in runs]
    fixed = [
        names,
        [state.plain for state in states],
        [epochs(run) for run in runs],
        [duration(run.seconds) for run in runs],
    ]
    heads = ["RUN", "STATE", "EPOCHS", "TIME"]
    room = width - sum(
        max(map(cell_len, [head, *column])) + _GAP
        for head, column in zip(heads, fixed, strict=True)
    )
    chosen: list[tuple[int, str, list[str]]] = []
    left = []
    for place, head, cells in _offers(runs, metric):
        wide = max(map(cell_len, [head, *cells]))
        if wide > room and chosen:
            left.append(head)
            continue
        room -= wide + _GAP
        chosen.append((place, head, cells))
    chosen.sort(key=lambda one: one[0])
    right = {2, 3, *(4 + at for at, one in enumerate(chosen) if one[0] < _SETTINGS)}
    rows: list[list[str | Text]] = [
        [name, state, *(column[at] for column in fixed[2:]), *(one[2][at] for one in chosen)]
        for at, (name, state) in enumerate(zip(names, states, strict=True))
    ]
    return table(rows, [*heads, *(one[1] for one in chosen)], right=right), left


_METRICS, _SETTINGS, _REST = 1, 2, 3
"""The order of the groups of columns."""


def _offers(runs: Sequence[Run], metric: Metric | None) -> Iterator[tuple[int, str, list[str]]]:
    """Group, heading and cells of the columns that may be shown, the most wanted first.

    Metrics and settings take turns, so that some of both are seen.
    """
    known = Known(runs)
    if metric:
        cells = [printable(best_value(run, metric)) for run in runs]
        yield _METRICS, f"BEST {printable(metric.name)}", cells
    # A metric and a setting of one name, such as the learning rate, need different headings.
    metrics = [
        Quantity(f"last:{name}" if name in known.differing else name, LAST, name)
        for name in known.metrics
        if name not in ("epoch", "step")
    ]
    settings = [Quantity(name, SETTING, name) for name in known.differing]
    for place in range(max(len(metrics), len(settings), 1)):
        if place == 1:
            yield from _labels(runs)
        for group, quantities in ((_METRICS, metrics), (_SETTINGS, settings)):
            if place < len(quantities):
                cells = _marked(quantities[place], runs)
                if max(map(cell_len, cells)) <= _WIDEST or len(settings) <= 1:
                    yield group, printable(quantities[place].spelling), cells
    if max(len(metrics), len(settings)) <= 1:
        yield from _labels(runs)


def _labels(runs: Sequence[Run]) -> Iterator[tuple[int, str, list[str]]]:
    if any(run.notes.tags for run in runs):
        yield _REST, "TAGS", [",".join(run.notes.tags) for run in runs]
    if len({run.path.parent for run in runs}) > 1:
        folders = [printable(str(shortened(run.path.parent))) for run in runs]
        yield _REST, "FOLDER", folders
    if any(run.resumed_from for run in runs):
        yield _REST, "RESUMED", [printable(run.predecessor or run.resumed_from) for run in runs]


def _marked(quantity: Quantity, runs: Sequence[Run]) -> list[str]:
    """The cells of a column. A star follows the best of different values of a metric."""
    cells = [cell(quantity, run) for run in runs]
    values = [quantity.value(run) for run in runs]
    sound = [one for one in values if isinstance(one, float) and math.isfinite(one)]
    metric = Metric.parse(quantity.name) if quantity.kind in (LAST, BEST) else None
    if metric is None or not metric.has_best or len(set(sound)) < 2:
        return cells
    if quantity.kind == BEST:
        metric = metric._replace(higher=quantity.higher)
    best = min(sound, key=metric.order)
    return [
        f"{text}*" if value == best else text for text, value in zip(cells, values, strict=True)
    ]


def cell(quantity: Quantity, run: Run) -> str:
    """A value as a short text of one line."""
    value = quantity.value(run)
    if value is None:
        return ""
    if quantity.is_metric and isinstance(value, float):
        return number(value)
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    if quantity.kind == FACT and quantity.name in ("seconds", "age"):
        return duration(value if isinstance(value, float) else None)
    if quantity.kind == FACT and quantity.name == "path":
        return printable(str(shortened(run.path)))
    return printable(plain(value))


def as_csv(runs: Sequence[Run], columns: Sequence[Quantity]) -> str:
    """The runs as CSV with a heading; numbers in full, missing values empty.

    Args:
        runs: The runs, in the order of the rows.
        columns: The columns behind the name; without any, all facts, metrics and settings.
    """
    wanted = list(columns) or _all(runs)
    if not any(one.kind == FACT and one.name in ("name", "path") for one in wanted):
        wanted.insert(0, Quantity("name", FACT, "name"))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([one.spelling for one in wanted])
    for run in runs:
        values = [one.value(run) for one in wanted]
        writer.writerow(["" if value is None else plain(value) for value in values])
    return text.getvalue()


def _all(runs: Sequence[Run]) -> list[Quantity]:
    known = Known(runs)
    metrics = [
        Quantity(f"last:{name}" if name in CSV_FACTS else name, LAST, name)
        for name in known.metrics
    ]
    settings = [Quantity(f"config.{name}", SETTING, name) for name in known.settings]
    return [*(Quantity(name, FACT, name) for name in CSV_FACTS), *metrics, *settings]


def as_json(runs: Sequence[Run], columns: Sequence[Quantity]) -> list[dict[str, object]]:
    """The values of some columns for each run, for JSON: dates and infinities as text."""
    return [{one.spelling: _json(one.value(run)) for one in columns} for run in runs]


def _json(value: object) -> object:
    if isinstance(value, datetime):
        return plain(value)
    if isinstance(value, float):
        return in_json(value)
    return list(value) if isinstance(value, tuple) else value


def _state(run: Run) -> Text:
    return Text(run.state, style=_STYLES.get(run.state, ""))
