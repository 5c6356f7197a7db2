"""The values of an imported run by epoch or by step, as the table of a run directory."""

from __future__ import annotations

import csv
import io
import math
from bisect import bisect_right
from typing import TYPE_CHECKING

from fdl.runs.importing.foreign import Curve
from fdl.runs.metrics import FIRST, RESOURCES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EPOCH, STEP = "epoch", "step"

_BY_EPOCH, _BY_STEP = "epoch/", "step/"
"""Begin the names of both kinds of metrics that flodl writes for TensorBoard and MLflow."""

_MOST_ROWS = 2000
_RESOURCES = "resources/"


class Sorted:
    """The curves of an imported run, told apart.

    Attributes:
        by_step: Metric -> its values by step.
        by_epoch: Metric -> its values by epoch, counted from 1; empty if no epochs were recorded.
        marks: Finished epochs by step; empty if they are not known.
    """

    def __init__(self, curves: Mapping[str, Curve]) -> None:
        cleaned = {name: curve.cleaned() for name, curve in curves.items() if curve.steps}
        self.by_step: dict[str, Curve] = {}
        self.by_epoch: dict[str, Curve] = {}
        self.marks = Curve()
        if any(name.startswith(_BY_STEP) for name in cleaned):
            self._from_flodl(cleaned)
        elif EPOCH in cleaned:
            self._from_epoch_metric(cleaned)
        else:
            self.by_step = cleaned

    def _from_flodl(self, curves: Mapping[str, Curve]) -> None:
        for name, curve in curves.items():
            if name.startswith(_BY_STEP):
                self.by_step[name.removeprefix(_BY_STEP)] = curve
            elif not name.startswith(_RESOURCES):
                self.by_epoch[name.removeprefix(_BY_EPOCH)] = curve

    def _from_epoch_metric(self, curves: Mapping[str, Curve]) -> None:
        """A metric called ``epoch`` counts epochs from 0, by step: Lightning records it."""
        counter = curves[EPOCH]
        for name, curve in curves.items():
            if name == EPOCH:
                continue
            self.by_step[name] = curve
            last: dict[int, int] = {}
            for place, step in enumerate(curve.steps):
                at = max(bisect_right(counter.steps, step) - 1, 0)
                epoch = counter.values[at]
                if math.isfinite(epoch):
                    last[int(epoch) + 1] = place
            places = sorted(last.items())
            self.by_epoch[name] = Curve(
                [epoch for epoch, _ in places],
                [curve.values[place] for _, place in places],
                [curve.times[place] for _, place in places],
            )
        ends = {int(value) + 1: step for step, value in _finite(counter)}
        for epoch, step in sorted(ends.items()):
            if not self.marks.steps or step > self.marks.steps[-1]:
                self.marks.add(step, float(epoch), math.nan)

    @property
    def epochs(self) -> int | None:
        """The last epoch; None if no epochs were recorded."""
        ends = [curve.steps[-1] for curve in self.by_epoch.values() if curve.steps]
        return max(ends, default=None)

    def table(self) -> str:
        """The text of ``metrics.csv``: a row for each epoch, or else for each step.

        Of many steps, 2,000 spread evenly have a row, and those in which a metric is lowest,
        highest or last. So the last and the best value are those of the whole curve.
        """
        by_epoch = bool(self.by_epoch)
        curves = self.by_epoch or self.by_step
        rows: dict[int, dict[str, float]] = {}
        for name, curve in curves.items():
            for place in range(len(curve.steps)) if by_epoch else _shown(curve):
                rows.setdefault(curve.steps[place], {})[name] = curve.values[place]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        ends = RESOURCES if by_epoch else ()
        writer.writerow([*(FIRST if by_epoch else (STEP,)), *curves, *ends])
        seconds = self._seconds() if by_epoch else {}
        for position, row in sorted(rows.items()):
            cells = [repr(row[name]) if name in row else "" for name in curves]
            took = [f"{seconds[position]:.3f}" if position in seconds else ""] if by_epoch else []
            writer.writerow([position, *took, *cells, *("" for _ in ends)])
        return text.getvalue()

    def _seconds(self) -> dict[int, float]:
        """The seconds of each epoch, from the times of its last values; without the first one."""
        ends: dict[int, float] = {}
        for curve in self.by_epoch.values():
            for epoch, time in zip(curve.steps, curve.times, strict=True):
                if math.isfinite(time):
                    ends[epoch] = max(ends.get(epoch, time), time)
        return {
            epoch: max(time - ends[epoch - 1], 0.0)
            for epoch, time in ends.items()
            if epoch - 1 in ends
        }


def _shown(curve: Curve) -> Sequence[int]:
    """The places of the points that get a row."""
    count = len(curve.steps)
    if count <= _MOST_ROWS:
        return range(count)
    # Every curve takes the same places if it has as many points, so that they share the rows.
    width = -(-count // _MOST_ROWS)
    chosen = {*range(0, count, width), count - 1}
    known = [place for place, value in enumerate(curve.values) if not math.isnan(value)]
    if known:
        chosen |= {
            min(known, key=curve.values.__getitem__),
            max(known, key=curve.values.__getitem__),
        }
    return sorted(chosen)


def _finite(curve: Curve) -> list[tuple[int, float]]:
    pairs = zip(curve.steps, curve.values, strict=True)
    return [(step, value) for step, value in pairs if math.isfinite(value)]
