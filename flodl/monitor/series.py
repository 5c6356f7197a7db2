"""Step curves: kept in bounded memory, thinned to the pixels that will show them."""

from __future__ import annotations

import threading
from array import array
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
                curve.extend(as_steps(piece.steps), np.asarray(piece.values, float))
                curve.limit(self._limit)
                steps, seconds = piece.clock
                self._clock.extend(as_steps(steps), np.asarray(seconds, float))
                self._clock.limit(MOMENTS_KEPT)

    @property
    def steps_done(self) -> int | None:
        """The number of steps up to the last one of all curves; None without one."""
        with self._lock:
            ends = [curve.steps[-1] for curve in self._curves.values() if curve.steps]
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
            steps, values = curve.read()
        steps, values = thinned(steps, values, points)
        return StepSeries(name, steps.tolist(), values.tolist())

    def snapshot(self, points: int | None = None) -> list[StepSeries]:
        """Return every curve, each thinned to `points`; the first one has the clock of all."""
        curves = [self.read(name, points) for name in self.names()]
        return [replace(one, clock=self.clock()) for one in curves[:1]] + curves[1:]

    def clock(self) -> tuple[list[int], list[float]]:
        """Return steps in rising order, and the seconds at which they were logged."""
        with self._lock:
            return self._clock.steps.tolist(), self._clock.values.tolist()


class _Curve:
    """Steps and values, in arrays that grow by doubling."""

    def __init__(self) -> None:
        self.steps, self.values = array("q"), array("d")

    def read(self) -> tuple[Steps, Values]:
        """Return a copy."""
        return np.array(self.steps), np.array(self.values)

    def extend(self, steps: Steps, values: Values) -> None:
        if self.steps and len(steps) and steps[0] <= self.steps[-1]:
            fresh = steps > self.steps[-1]
            steps, values = steps[fresh], values[fresh]
        self.steps.frombytes(steps.tobytes())
        self.values.frombytes(values.tobytes())

    def limit(self, most: int) -> None:
        """Thin more than `most` points to half of them."""
        if len(self.steps) > most:
            steps, values = thinned(*self.read(), most // 2)
            self.steps, self.values = array("q", steps.tobytes()), array("d", values.tobytes())


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


def as_steps(steps: Sequence[int]) -> Steps:
    """Return steps as an array; for a range, the usual case, without reading its elements."""
    if isinstance(steps, range):
        return np.arange(steps.start, steps.stop, steps.step, dtype=np.int64)
    return np.asarray(steps, np.int64)
