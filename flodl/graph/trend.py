"""Questions about a series of points: its last value, its slope, whether it is stable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import final, overload


@final
class Trend:
    """The points of one metric, oldest first, and questions about them.

    Windows count points from the newest backwards; 0 means all points. A window that contains nan
    has a slope and a variance of nan. So it is neither improving, nor stalled, nor converged.

    Args:
        values: The points; they are copied.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._values = [float(value) for value in values]

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return self._values == other._values if isinstance(other, Trend) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._values))

    def __repr__(self) -> str:
        return f"Trend({self._values})"

    @property
    def values(self) -> list[float]:
        """All points, as a new list."""
        return list(self._values)

    def last(self, n: int) -> list[float]:
        """The newest `n` points, oldest first; all if there are fewer, none for 0.

        Raises:
            ValueError: `n` is negative.
        """
        return self._values[len(self._values) - min(_whole("n", n), len(self._values)) :]

    def latest(self) -> float:
        """The newest point; nan if there is none."""
        return self._values[-1] if self._values else math.nan

    def mean(self) -> float:
        """Mean of all points; nan if there is none."""
        return _mean(self._values) if self._values else math.nan

    def min(self) -> float:
        """The smallest point that is a number; +inf if there is none."""
        return min(self._numbers(), default=math.inf)

    def max(self) -> float:
        """The largest point that is a number; -inf if there is none."""
        return max(self._numbers(), default=-math.inf)

    def slope(self, window: int = 0) -> float:
        """Change per point: the slope of the least-squares line through the window.

        With points y_0 … y_{n-1} at 0 … n-1, that is Σ (i - x̄)(y_i - ȳ) / Σ (i - x̄)², where the
        denominator is n(n² - 1)/12. Fewer than two points have a slope of 0.

        Raises:
            ValueError: `window` is negative.
        """
        points = self._window(window)
        count = len(points)
        if count < 2:
            return 0.0
        center, level = (count - 1) / 2, _mean(points)
        rise = sum((place - center) * (value - level) for place, value in enumerate(points))
        return rise / (count * (count * count - 1) / 12)

    def improving(self, window: int = 0) -> bool:
        """Whether the window falls: smaller values count as better, as for a loss.

        Raises:
            ValueError: `window` is negative.
        """
        return self.slope(window) < 0

    def stalled(self, window: int, tolerance: float, *, min_points: int | None = None) -> bool:
        """Whether the window is level: the absolute slope is below the tolerance.

        Args:
            window: Number of points to use; 0 for all.
            tolerance: In units of the metric per point.
            min_points: With fewer points the answer is False. None means ``max(2, window)``, so
                that a run which has just started is not stalled.

        Raises:
            ValueError: `window` or `min_points` is negative.
        """
        return self._enough(window, min_points) and abs(self.slope(window)) < tolerance

    def converged(self, window: int, tolerance: float, *, min_points: int | None = None) -> bool:
        """Whether the window is stable: its population variance is below the tolerance.

        Args:
            window: Number of points to use; 0 for all.
            tolerance: In squared units of the metric.
            min_points: See :meth:`stalled`.

        Raises:
            ValueError: `window` or `min_points` is negative.
        """
        return self._enough(window, min_points) and _variance(self._window(window)) < tolerance

    def _window(self, window: int) -> list[float]:
        return self.last(_whole("window", window)) if window else self._values

    def _enough(self, window: int, min_points: int | None) -> bool:
        if min_points is None:
            return len(self._values) >= max(2, _whole("window", window))
        return len(self._values) >= _whole("min_points", min_points)

    def _numbers(self) -> Iterator[float]:
        return (value for value in self._values if not math.isnan(value))


@final
class TrendGroup:
    """Several trends in one object, such as those of a tag group.

    ``all_…`` is True if the answer is True for every trend, ``any_…`` if it is True for at least
    one. Both are False for a group without trends.

    Args:
        trends: The members, in order.
    """

    __slots__ = ("_trends",)

    def __init__(self, trends: Iterable[Trend] = ()) -> None:
        self._trends = tuple(trends)

    def __len__(self) -> int:
        return len(self._trends)

    def __iter__(self) -> Iterator[Trend]:
        return iter(self._trends)

    @overload
    def __getitem__(self, place: int) -> Trend: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Trend, ...]: ...
    def __getitem__(self, place: int | slice) -> Trend | tuple[Trend, ...]:
        return self._trends[place]

    def __repr__(self) -> str:
        return f"TrendGroup({list(self._trends)})"

    def slopes(self, window: int = 0) -> list[float]:
        """The slope of every trend, in order."""
        return [trend.slope(window) for trend in self._trends]

    def mean_slope(self, window: int = 0) -> float:
        """Mean of the slopes; 0 for an empty group."""
        return _mean(self.slopes(window)) if self._trends else 0.0

    def all_improving(self, window: int = 0) -> bool:
        """Whether :meth:`Trend.improving` is True for every trend."""
        return self._all(lambda trend: trend.improving(window))

    def all_stalled(self, window: int, tolerance: float, *, min_points: int | None = None) -> bool:
        """Whether :meth:`Trend.stalled` is True for every trend."""
        return self._all(lambda trend: trend.stalled(window, tolerance, min_points=min_points))

    def all_converged(
        self, window: int, tolerance: float, *, min_points: int | None = None
    ) -> bool:
        """Whether :meth:`Trend.converged` is True for every trend."""
        return self._all(lambda trend: trend.converged(window, tolerance, min_points=min_points))

    def _all(self, says: Callable[[Trend], bool]) -> bool:
        return bool(self._trends) and all(says(trend) for trend in self._trends)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _variance(values: list[float]) -> float:
    if not values:
        return 0.0
    level = _mean(values)
    return sum((value - level) ** 2 for value in values) / len(values)


def _whole(name: str, count: int) -> int:
    if count < 0:
        raise ValueError(f"{name} counts points and cannot be negative, got {count}")
    return count
