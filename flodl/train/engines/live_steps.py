"""Trials that run beside a training: a generator, and each ``yield`` is one live step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from flodl.data import Batch

T = TypeVar("T")


class Taken(NamedTuple):
    """A step that was taken: its time in seconds, and what it trained on."""

    seconds: float
    batch: Batch


Steps: TypeAlias = Generator[None, Taken, T]
"""Runs as training goes: each ``yield`` is one step of the training, and tells about it."""


def median_of_steps(steps: int) -> Steps[float]:
    """Take steps and return the median of their seconds."""
    seconds: list[float] = []
    while len(seconds) < steps:
        taken = yield
        seconds.append(taken.seconds)
    return statistics.median(seconds)


def is_clear(ratios: Sequence[float], bar: float) -> bool:
    """Whether the median of some ratios lies two of its standard errors or more from the bar."""
    median = statistics.median(ratios)
    deviation = 1.4826 * statistics.median(abs(ratio - median) for ratio in ratios)
    return abs(median - bar) >= 2 * 1.2533 * deviation / math.sqrt(len(ratios))
