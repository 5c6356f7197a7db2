"""Trials during a training: each is a generator, and each ``yield`` is one live step."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, final

from flodl.monitor.ledger import Account

T = TypeVar("T")

PHASES = (Account.FORWARD, Account.BACKWARD, Account.OPTIMIZER)
"""The phases of a step, in order."""


class Taken(NamedTuple):
    """A completed step: its time in seconds, its batch, and the seconds of its phases."""

    seconds: float
    batch: Any
    phases: Mapping[Account, float]


@final
class PhaseClock:
    """Measures the phases of steps; a step calls it at the end of each phase.

    Args:
        lap: Also called at the end of each phase.
    """

    def __init__(self, lap: Callable[[Account], object] | None) -> None:
        self._lap = lap
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._last = 0.0

    def begin(self) -> None:
        """Begin the first phase."""
        self._last = time.perf_counter()

    def __call__(self, phase: Account) -> None:
        """End a phase, and begin the next one."""
        now = time.perf_counter()
        self._seconds[phase] += now - self._last
        if self._lap is not None:
            self._lap(phase)
        self._last = time.perf_counter()

    def take(self) -> Mapping[Account, float]:
        """Return the seconds since the last call of this method, by phase."""
        taken, self._seconds = self._seconds, dict.fromkeys(PHASES, 0.0)
        return taken


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
