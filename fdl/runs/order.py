"""The order of runs by one quantity."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING

from fdl.runs.compare import plain
from fdl.runs.metrics import BEST_OF, DIRECTIONS, HIGHEST, Metric
from fdl.runs.quantity import BEST, Known, Quantity, unquoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.runs.run import Run


def sorted_by(text: str, runs: Sequence[Run]) -> list[Run]:
    """The runs in the order of a quantity; those without a value come last.

    Args:
        text: A quantity. ``NAME:max`` begins with the highest value, ``NAME:min`` with the lowest.
            Without a direction the best value of a metric comes first, and else the lowest. Metrics
            that are nan or infinite follow the others.
        runs: The runs. Among equal values their order stays.

    Raises:
        UsageError: No run knows the quantity.
    """
    quantity, higher = _parsed(text, Known(runs))
    valued = [(run, value) for run in runs if (value := quantity.value(run)) is not None]
    broken = [run for run, value in valued if quantity.is_metric and not _is_finite(value)]
    sound = [pair for pair in valued if pair[0] not in broken]
    ranked = sorted(sound, key=lambda pair: _key(pair[1]), reverse=higher)
    missing = [run for run in runs if quantity.value(run) is None]
    return [*(run for run, _ in ranked), *broken, *missing]


def _parsed(text: str, known: Known) -> tuple[Quantity, bool]:
    name, _, direction = text.rpartition(":")
    if name and direction in DIRECTIONS and not unquoted(text).startswith(BEST_OF):
        return known.resolve(name), direction == HIGHEST
    quantity = known.resolve(text)
    if quantity.kind == BEST:
        return quantity, quantity.higher
    return quantity, quantity.is_metric and Metric.parse(quantity.name).higher


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _key(value: object) -> tuple[int, float, str]:
    """Numbers before texts, so that a setting of both kinds can be sorted."""
    if isinstance(value, datetime):
        return 0, value.timestamp(), ""
    if isinstance(value, bool | int | float):
        return 0, float(value) if abs(value) < 1 << 1023 else math.copysign(math.inf, value), ""
    return 1, 0.0, plain(value)
