"""Step curves: kept in bounded memory, thinned to the pixels that will show them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from flodl.monitor.records import StepSeries

POINTS_KEPT = 2**18
"""Points that a monitor keeps per curve, 16 bytes each: at most 4 MiB per curve."""

MOMENTS_KEPT = 2048
"""Moments that relate steps to time; a curve between them is drawn as if time passed evenly."""

Steps: TypeAlias = npt.NDArray[np.int64]
Values: TypeAlias = npt.NDArray[np.float64]


class SeriesStore:
    """Curves by name. One thread may append while others read.

    A point takes 16 bytes. A curve that reaches `limit` points is thinned to half of them, with its
    extremes kept. So old parts become coarser and memory stays constant.

    Args:
        limit: Points per curve, at least 16.
    """

    def __init__(self, limit: int = POINTS_KEPT) -> None:
        self._limit = max(16, limit)
        self._lock = threading.Lock()
        self._curves: dict[str, _Curve] = {}
        self._clock = _Curve()

    def extend(self, series: Sequence[StepSeries]) -> None:
        """Append pieces of curves; a step that is not above the last one of its curve is left out.

        Raises:
            ValueError: A piece has a different number of values and steps.
        """
        for piece in series:
            if len(piece.steps) != len(piece.values):
                raise ValueError(
                    f"step series {piece.name!r}: {len(piece.steps)} steps and "
                    f"{len(piece.values)} values; pass one value per step"
                )
        with self._lock:
            for piece in series:
                curve = self._curves.get(piece.name)
                if curve is None:
                    curve = self._curves[piece.name] = _Curve()
                curve.extend(_whole(piece.steps), np.asarray(piece.values, float))
                if curve.count > self._limit:
                    curve.thin(self._limit // 2)
                steps, seconds = piece.clock
                self._clock.extend(_whole(steps), np.asarray(seconds, float))
                if self._clock.count > MOMENTS_KEPT:
                    self._clock.thin(MOMENTS_KEPT // 2)

    @property
    def steps_done(self) -> int | None:
        """The number of steps up to the last one of all curves; None without one."""
        with self._lock:
            ends = [int(curve.view()[0][-1]) for curve in self._curves.values() if curve.count]
        return max(ends) + 1 if ends else None

    def names(self) -> tuple[str, ...]:
        """Return the curves' names in the order of their first point."""
        with self._lock:
            return tuple(self._curves)

    def read(self, name: str, points: int | None = None) -> StepSeries:
        """Return a curve, thinned by :func:`thinned`.

        Args:
            name: An unknown name gives an empty curve.
            points: Largest number of points; None for all.
        """
        with self._lock:
            curve = self._curves.get(name)
            if curve is None:
                return StepSeries(name, (), ())
            steps, values = curve.view()
        # Appending writes beyond the end of these views, and thinning makes new arrays.
        steps, values = thinned(steps, values, points)
        return StepSeries(name, steps.tolist(), values.tolist())

    def snapshot(self, points: int | None = None) -> list[StepSeries]:
        """Return every curve, each thinned to `points`; the first one has the clock of all."""
        curves = [self.read(name, points) for name in self.names()]
        return [replace(one, clock=self.clock()) for one in curves[:1]] + curves[1:]

    def clock(self) -> tuple[list[int], list[float]]:
        """Return steps in rising order, and the seconds at which they were logged."""
        with self._lock:
            steps, seconds = self._clock.view()
            return steps.tolist(), seconds.tolist()


class _Curve:
    """Two arrays that grow by doubling."""

    def __init__(self) -> None:
        self.count = 0
        self._steps: Steps = np.empty(64, np.int64)
        self._values: Values = np.empty(64, np.float64)

    def view(self) -> tuple[Steps, Values]:
        return self._steps[: self.count], self._values[: self.count]

    def extend(self, steps: Steps, values: Values) -> None:
        if self.count and len(steps) and steps[0] <= self._steps[self.count - 1]:
            fresh = steps > self._steps[self.count - 1]
            steps, values = steps[fresh], values[fresh]
        end = self.count + len(steps)
        if end > len(self._steps):
            self._grow(max(end, 2 * len(self._steps)))
        self._steps[self.count : end] = steps
        self._values[self.count : end] = values
        self.count = end

    def thin(self, points: int) -> None:
        self._steps, self._values = thinned(*self.view(), points)
        self.count = len(self._steps)

    def _grow(self, size: int) -> None:
        steps, values = self.view()
        self._steps, self._values = np.empty(size, np.int64), np.empty(size, np.float64)
        self._steps[: self.count], self._values[: self.count] = steps, values


def thinned(steps: Steps, values: Values, points: int | None) -> tuple[Steps, Values]:
    """Return at most `points` points that draw the same curve.

    The curve is cut into equal runs of points. Of each run the lowest, the highest and the first
    non-finite value stay. The first and the last point of the curve stay too.

    Args:
        steps: Rising, shape ``[n]``.
        values: Shape ``[n]``.
        points: At least 5 are kept, even if `points` is less; None keeps all.
    """
    count = len(steps)
    if points is None or count <= (most := max(5, points)):
        return steps, values
    finite = np.isfinite(values)
    runs = max(1, (most - 2) // (2 if finite.all() else 3))
    width = -(-count // runs)
    rows = -(-count // width)
    padding = (0, rows * width - count)

    def picked(keys: Any, fill: float) -> npt.NDArray[np.intp]:
        table = np.pad(keys, padding, constant_values=fill).reshape(rows, width)
        places: npt.NDArray[np.intp] = table.argmin(axis=1) + np.arange(rows) * width
        return places

    lowest = picked(np.where(finite, values, np.inf), np.inf)
    highest = picked(np.where(finite, -values, np.inf), np.inf)
    broken = picked(finite, 1)
    broken = broken[~finite[np.minimum(broken, count - 1)]]
    kept = np.unique(np.concatenate(([0, count - 1], lowest, highest, broken)))
    kept = kept[kept < count]
    return steps[kept], values[kept]


def _whole(steps: Sequence[int]) -> Steps:
    """Return steps as an array; for a range, the usual case, without reading its elements."""
    if isinstance(steps, range):
        return np.arange(steps.start, steps.stop, steps.step, dtype=np.int64)
    return np.asarray(steps, np.int64)
