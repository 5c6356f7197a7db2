"""Trials during a training: each is a generator, and each ``yield`` is one live step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from flodl.data import Batch

T = TypeVar("T")


class Taken(NamedTuple):
    """A completed step: its time in seconds, and its batch."""

    seconds: float
    batch: Batch


Steps: TypeAlias = Generator[None, Taken, T]
"""A trial that runs during training: each ``yield`` is one step of the training and returns it."""


def median_of_steps(steps: int) -> Steps[float]:
    """Take steps and return the median of their seconds."""
    seconds: list[float] = []
    while len(seconds) < steps:
        taken = yield
        seconds.append(taken.seconds)
    return statistics.median(seconds)


def is_clear(ratios: Sequence[float], bar: float) -> bool:
    """Whether the median of the ratios is at least two of its standard errors away from the bar."""
    median = statistics.median(ratios)
    deviation = 1.4826 * statistics.median(abs(ratio - median) for ratio in ratios)
    return abs(median - bar) >= 2 * 1.2533 * deviation / math.sqrt(len(ratios))
