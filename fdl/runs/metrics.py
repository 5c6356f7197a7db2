"""The table of a run's metrics, and the better of two values."""

from __future__ import annotations

import csv
import io
import json
import math
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fdl.base.errors import UsageError
from fdl.base.own_files import read_json, read_own
from fdl.base.run_record import METRIC_LINES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

RESOURCES = ("cpu_pct", "ram_used", "gpu_pct", "vram_alloc", "vram_spill")
FIRST = ("epoch", "duration_s")

_COUNTERS = ("epoch", "step")

BEST_OF = "best:"
"""Before the name of a metric: its best value, or the run that has it."""

LOWEST, HIGHEST = DIRECTIONS = ("min", "max")

_HIGHER_IS_BETTER = (
    "acc", "accuracy", "auc", "auroc", "bleu", "dice", "f1", "iou", "map", "mcc", "ndcg",
    "precision", "psnr", "r2", "recall", "return", "reward", "rouge", "score", "ssim",
    "throughput", "top1", "top5",
)  # fmt: skip


_RECORDED = {"lr", "grad_norm"}
"""What the Trainer records beside the metrics of a program."""


class Best(NamedTuple):
    """A metric's best value, and the first epoch (from 1) or step with that value."""

    value: float
    epoch: int


class Metrics:
    """Metrics of a run by epoch.

    A list of thousands of runs shows the last row of each, so no other one is cut for it.

    Attributes:
        names: Metrics in the order of the table.
        unit: What the rows are numbered by: ``epoch``, or ``step`` of an imported run.
        steps: The step at the end of each row, if the table has one.
        seconds: Reads the wall time of each row, if the table has one.

    Args:
        names: As above.
        numbers: The number of each row.
        cells: Reads the metrics of the row at a place.
        unit: As above.
        steps: As above.
        seconds: As above.
    """

    def __init__(
        self,
        names: list[str],
        numbers: Sequence[int] = (),
        cells: Callable[[int], dict[str, float]] = lambda _: {},
        unit: str = "epoch",
        steps: Sequence[float] = (),
        seconds: Callable[[], list[float]] = list,
    ) -> None:
        self.names = names
        self.unit = unit
        self.steps = steps
        self.seconds = seconds
        self._numbers = numbers
        self._cells = cells

    @classmethod
    def read(cls, file: str | Path) -> Metrics:
        """Read ``metrics.csv``. Skip broken lines; without the file, return empty metrics."""
        try:
            first, *lines = _lines(read_own(file, "replace")) or [""]
        except (OSError, csv.Error):
            first, lines = "", []
        heading = _cut(first)
        # Resource columns are the last ones: a metric may have the same name as one of them.
        end = len(heading) - len(RESOURCES)
        if tuple(heading[:2]) != FIRST or tuple(heading[end:]) != RESOURCES:
            return cls([])
        names = heading[2:end]
        found = _numbered(lines, len(heading))
        return cls(
            names,
            [epoch for epoch, _ in found],
            lambda at: _cells(names, _cut(found[at][1])[2:end]),
            seconds=lambda: [_number(_cut(line)[1]) for _, line in found],
        )

    @classmethod
    def of_program(cls, folder: Path, unit: str = "epoch") -> Metrics:
        """The metrics that a program without run directories wrote into a folder.

        ``metrics.csv`` has a heading, and a row for each epoch; ``metrics.jsonl`` has an object in
        each line; ``metrics.json`` is one object. Rows of one number are one row. A row without a
        number belongs to the one before it, unless no row has one. Values that are not numbers are
        skipped.

        Args:
            folder: The folder.
            unit: The column that numbers the rows, if there is one: ``epoch`` or ``step``. Rows
                with steps and without epochs are numbered by the steps.
        """
        measured = [
            {name: number for name, cell in row.items() if (number := as_number(cell)) is not None}
            for row in _rows_of_program(folder)
        ]
        if {name for row in measured for name in row if name in _COUNTERS} == {"step"}:
            unit = "step"
        is_numbered = any(unit in row for row in measured)
        names = dict.fromkeys(name for row in measured for name in row if name not in _COUNTERS)
        rows: dict[int, dict[str, float]] = {}
        steps: dict[int, float] = {}
        last = 0.0
        for place, row in enumerate(measured, 1):
            number = row.get(unit, last if is_numbered else place)
            if row and math.isfinite(number):
                last = number
                cells = rows.setdefault(int(number), {})
                cells |= {name: row[name] for name in names if name in row}
                if "step" in row:
                    steps[int(number)] = row["step"]
        # Several processes may print their steps in another order.
        rows = dict(sorted(rows.items()))
        known: Sequence[float] = list(rows)
        if unit != "step":
            known = [steps[one] for one in rows if one in steps]
        return cls(
            list(names),
            list(rows),
            list(rows.values()).__getitem__,
            unit,
            known if len(known) == len(rows) else (),
        )

    @cached_property
    def rows(self) -> list[tuple[int, dict[str, float]]]:
        """The number of each row, and its metrics."""
        return [(number, self._cells(at)) for at, number in enumerate(self._numbers)]

    @property
    def epochs(self) -> int:
        """The last epoch of the table, counted from 1; 0 without one, or if its rows are steps."""
        return max(self._numbers, default=0) if self.unit == "epoch" else 0

    def last(self) -> dict[str, float]:
        """The metrics of the last epoch, in the table's order."""
        return self._cells(-1) if self._numbers else {}

    def latest(self) -> dict[str, float]:
        """The last value of each metric, also of one that the last epoch did not measure."""
        found = self.last()
        if len(found) < len(self.names):
            found = {name: value for _, row in self.rows for name, value in row.items()}
        return {name: found[name] for name in self.names if name in found}

    def best(self, metric: Metric) -> Best | None:
        """The best value of a metric over all epochs; nan or infinity only without others."""
        name = metric.name
        found = [(row[name], epoch) for epoch, row in self.rows if name in row]
        finite = [one for one in found if math.isfinite(one[0])]
        if not finite:
            return min((Best(*one) for one in found), key=lambda one: one.epoch, default=None)
        best = max(finite)[0] if metric.higher else min(finite)[0]
        return Best(best, min(epoch for value, epoch in finite if value == best))


_Line: TypeAlias = str | list[str]
"""A line of a table, or its cells where they had quotes."""


def _lines(text: str) -> list[_Line]:
    """The lines of a table that are not empty."""
    if '"' in text:
        return [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    return [line for line in plain.split("\n") if line]


def _cut(line: _Line) -> list[str]:
    return line.split(",") if isinstance(line, str) else line


def _numbered(lines: list[_Line], width: int) -> list[tuple[int, _Line]]:
    """The lines with an epoch and as many cells as the heading, each with its epoch."""
    found = []
    for line in lines:
        if isinstance(line, str):
            first, count = line.partition(",")[0], line.count(",") + 1
        else:
            first, count = line[0], len(line)
        if count == width and first.isdecimal():
            found.append((int(first), line))
    return found


def _cells(names: list[str], cells: list[str]) -> dict[str, float]:
    """The numbers in a line of a table; an empty cell is left out, a broken one is nan."""
    try:
        # Thousands of tables are read for a list of runs, and nearly all of them are sound.
        return dict(zip(names, map(float, cells), strict=True))
    except ValueError:
        pairs = zip(names, cells, strict=True)
        return {name: _number(cell) for name, cell in pairs if cell}


def _rows_of_program(folder: Path) -> Iterator[Mapping[str, object]]:
    """The rows of all files of metrics in a folder."""
    with suppress(OSError, csv.Error):
        yield from csv.DictReader(
            io.StringIO(read_own(folder / "metrics.csv", "replace"), newline="")
        )
    with suppress(OSError):
        for line in io.StringIO(read_own(folder / METRIC_LINES, "replace"), newline=""):
            # A program that was killed may leave half a line.
            with suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict):
                    yield row
    yield read_json(folder / "metrics.json") or {}


class Metric(NamedTuple):
    """A metric, and whether higher or lower values are better."""

    name: str
    higher: bool

    @classmethod
    def parse(cls, text: str) -> Metric:
        """Read ``val_loss``, ``val_loss:min`` or ``margin:max``.

        Without a direction the name decides. For an accuracy, a score or a similar name higher is
        better; for all other names lower is better.

        Raises:
            UsageError: The text does not name a metric.
        """
        name, colon, direction = text.rpartition(":")
        is_directed = bool(colon) and direction in DIRECTIONS
        text = name if is_directed else text
        if not text:
            raise UsageError("no metric is named", hint="such as val_loss, or margin:max")
        if is_directed:
            return cls(text, direction == HIGHEST)
        words = text.lower().replace("/", "_").replace(".", "_").replace("-", "_").split("_")
        return cls(text, any(word in _HIGHER_IS_BETTER for word in words))

    @property
    def has_best(self) -> bool:
        """Whether one value can be better than another; a learning rate is only recorded."""
        return self.name not in _RECORDED

    def order(self, value: float) -> tuple[bool, float]:
        """A key that grows as the value gets worse; nan and infinities are worse than numbers."""
        if not math.isfinite(value):
            return True, 0.0
        return False, -value if self.higher else value


def as_number(cell: object) -> float | None:
    """A number, also one that is written as text; None for anything else, such as a truth value."""
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        return None
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return None


def _number(text: str) -> float:
    return math.nan if (number := as_number(text)) is None else number
