"""Trials during a training: each is a generator, and each ``yield`` is one live step."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, SupportsFloat, TypeAlias, TypeVar, final

import torch

from flodl.monitor.ledger import Account

T = TypeVar("T")

PHASES = (Account.FORWARD, Account.BACKWARD, Account.OPTIMIZER)
"""The phases of a step, in order."""


class Taken(NamedTuple):
    """A completed step: its time in seconds, its batch, and the seconds of its phases.

    On a GPU, asking for the seconds waits until the step has run there.
    """

    seconds: SupportsFloat
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


class StepClock(Protocol):
    """Measures whole steps."""

    def begin(self) -> None:
        """Begin a step or a part of one."""

    def end(self) -> None:
        """End a step or a part of one."""

    def add(self, seconds: float) -> None:
        """Count time of the host between two steps as time of the next one."""

    def take(self) -> SupportsFloat:
        """Return the seconds of the step that has just ended."""


@final
class HostClock:
    """For steps that the processor computes: the time inside of them."""

    def __init__(self) -> None:
        self._started = self._spent = 0.0

    def begin(self) -> None:
        """Begin a step or a part of one."""
        self._started = time.perf_counter()

    def end(self) -> None:
        """End a step or a part of one."""
        self._spent += time.perf_counter() - self._started

    def add(self, seconds: float) -> None:
        """Count time between two steps as time of the next one."""
        self._spent += seconds

    def take(self) -> float:
        """Return the seconds of the step that has just ended."""
        taken, self._spent = self._spent, 0.0
        return taken


class Mark(Protocol):
    """A point in the queue of a device, as an event of torch is one."""

    def synchronize(self) -> None:
        """Wait until the device has reached the point."""

    def elapsed_time(self, later: Any) -> float:
        """Return the milliseconds until the device has reached another one."""


@final
class DeviceClock:
    """For steps that a GPU computes: its time from the end of one step to the end of the next.

    No step waits for the device. The time of the host counts where the device waits for it.

    Args:
        mark: Puts a mark into the queue of the device.
    """

    def __init__(self, mark: Callable[[], Mark]) -> None:
        self._mark = mark
        self._last: Mark | None = None

    def begin(self) -> None:
        """Begin a step or a part of one."""
        if self._last is None:
            self._last = self._mark()

    def end(self) -> None:
        """End a step or a part of one."""

    def add(self, seconds: float) -> None:
        """Do nothing: time between two steps counts anyway."""

    def take(self) -> SupportsFloat:
        """Return the seconds of the step that has just ended."""
        before, self._last = self._last, self._mark()
        return _Between(before or self._last, self._last)


@final
class _Between:
    """The seconds between two marks, read when somebody asks for them."""

    def __init__(self, start: Mark, end: Mark) -> None:
        self._start, self._end = start, end

    def __float__(self) -> float:
        self._end.synchronize()
        return self._start.elapsed_time(self._end) / 1e3


def step_clock(device: torch.device) -> HostClock | DeviceClock:
    """Return the clock for the steps of a device."""
    if device.type != "cuda":
        return HostClock()

    def mark() -> Mark:
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        found: Mark = event
        return found

    return DeviceClock(mark)


Steps: TypeAlias = Generator[None, Taken, T]
"""A trial that runs during training: each ``yield`` is one step of the training and returns it."""


def median_of_steps(steps: int) -> Steps[float]:
    """Take steps and return the median of their seconds."""
    seconds: list[SupportsFloat] = []
    while len(seconds) < steps:
        taken = yield
        seconds.append(taken.seconds)
    return statistics.median(map(float, seconds))  # asked at the end: a GPU is waited for once


def is_clear(ratios: Sequence[float], bar: float) -> bool:
    """Whether the median of the ratios is at least two of its standard errors away from the bar."""
    median = statistics.median(ratios)
    deviation = 1.4826 * statistics.median(abs(ratio - median) for ratio in ratios)
    return abs(median - bar) >= 2 * 1.2533 * deviation / math.sqrt(len(ratios))
