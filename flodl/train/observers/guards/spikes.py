"""The rule that says which loss is a spike."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, Self, final

_RENEWED = 16
"""Losses after which the limit is computed again, the first time after so many. Counted, so that it
does not depend on when the losses are read."""

_NORMAL = 1.4826
"""The standard deviation of a normal distribution by its median absolute deviation."""

_LEAST_SPREAD = 0.05
"""Least spread, as a part of the median: losses that are nearly equal are not spikes."""

_ABOVE_LARGEST = 2.0
"""A spike is more than so many times the largest of the last losses."""

_LEAST_OF_FIRST = 0.001
"""Least spread, as a part of the first median."""


@final
class SpikeRule:
    """Compares each loss with those before it: ``loss > m + spike · max(1.4826 · d, 0.05 · |m|)``.

    ``m`` is the median of the last losses and ``d`` the median of their distances from it. A spike
    is also more than twice the largest of them, because some losses have rare large values. And the
    spread is at least a thousandth of the first median: near the end of a good training, losses are
    so small that their outliers do no harm. The limit is computed again after every 16 losses. A
    loss that is not finite always counts.

    Args:
        spike: Factor of the spread; None: only losses that are not finite count.
        window: Most losses that are compared with.
    """

    def __init__(self, spike: float | None, window: int) -> None:
        self._spike = spike
        self._losses: deque[float] = deque(maxlen=window)
        self._count = 0
        self._first: float | None = None
        self._limit = math.inf

    def first_bad(self, losses: Iterable[float]) -> int | None:
        """Take losses up to the first bad one; return its place, None if all are good."""
        keep, spike = self._losses.append, self._spike
        for place, loss in enumerate(losses):
            # False for nan, too.
            if not loss <= self._limit or loss - loss != 0.0:
                return place
            if spike is None:
                continue
            keep(loss)
            self._count += 1
            if self._count % _RENEWED == 0:
                self._renew(spike)
        return None

    @property
    def limit(self) -> float:
        """The largest loss that is not a spike now."""
        return self._limit

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        limit = self._limit if math.isfinite(self._limit) else None
        losses = list(self._losses)
        return {"losses": losses, "count": self._count, "first": self._first, "limit": limit}

    def load(self, state: Mapping[str, Any]) -> Self:
        """Continue from the result of :meth:`state`."""
        self._losses = deque(map(float, state["losses"]), maxlen=self._losses.maxlen)
        self._count = int(state["count"])
        self._first = None if state["first"] is None else float(state["first"])
        self._limit = math.inf if state["limit"] is None else float(state["limit"])
        return self

    def _renew(self, spike: float) -> None:
        middle = median(self._losses)
        if self._first is None:
            self._first = middle
        spread = _NORMAL * median(abs(loss - middle) for loss in self._losses)
        least = max(_LEAST_SPREAD * abs(middle), _LEAST_OF_FIRST * abs(self._first))
        spiking = middle + spike * max(spread, least)
        self._limit = max(spiking, _ABOVE_LARGEST * max(self._losses))
