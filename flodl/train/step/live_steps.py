"""The one protocol of trials: two ways in turns, in live steps; each ``yield`` is one step."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Generator
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    Protocol,
    SupportsFloat,
    TypeAlias,
    TypeVar,
    final,
)

import torch

if TYPE_CHECKING:
    from flodl.train.step.tuned import TunedEngine
    from flodl.train.step.tuning import Tuning

T = TypeVar("T")
_NOTICEABLE = 0.5
"""Seconds that a single round may cost before its result is believed."""

_HOPELESS, _EVIDENT = 1.1, 0.7
"""If the ratios of two rounds are all above, or all below, more rounds tell nothing new."""


class Taken(NamedTuple):
    """A completed step: its time in seconds, and its batch.

    On a GPU, asking for the seconds waits until the step has run there.
    """

    seconds: SupportsFloat
    batch: Any


Steps: TypeAlias = Generator[None, Taken, T]
"""A trial that runs during training: each ``yield`` is one step of the training and returns it."""


class Measured(NamedTuple):
    """The result of a comparison.

    Attributes:
        ratio: Time of a step with the candidate, divided by the time without. It is infinite if the
            engine could not use the candidate.
        noise: Two standard errors of the ratio.
        cost: Seconds that the comparison has cost the training.
    """

    ratio: float
    noise: float
    cost: float


def measure(
    engine: TunedEngine,
    best: Tuning,
    candidate: Tuning,
    *,
    bar: float,
    block: int,
    rounds: int,
    budget: float,
) -> Steps[Measured]:
    """Compare a candidate with the best way so far, in alternating blocks of live steps.

    Args:
        engine: Computes the steps.
        best: The best way so far.
        candidate: The way to compare.
        bar: The ratio that decides.
        block: Steps that are measured together.
        rounds: Least number of rounds of two blocks; three times as many if noise hides the result.
        budget: Seconds that the comparison may cost; one round is always made.
    """
    ratios: list[float] = []
    cost = noise = 0.0
    while True:
        found: dict[Tuning, _Block] = {}
        for tuning in (best, candidate) if len(ratios) % 2 else (candidate, best):
            engine.use(tuning)
            found[tuning] = yield from _a_block(block)
            if engine.tuning != tuning:
                return Measured(math.inf, 0.0, cost)
        usual, tried = found[best].median, found[candidate].median
        ratios.append(tried / usual)
        cost += max(0.0, tried - usual) * block
        cost += sum(max(0.0, one.first - usual) for one in found.values())
        median, count = statistics.median(ratios), len(ratios)
        deviation = 1.4826 * statistics.median(abs(ratio - median) for ratio in ratios)
        noise = 2 * 1.2533 * deviation / math.sqrt(count)
        far = min(ratios) > _HOPELESS or max(ratios) < _EVIDENT
        clear = count >= rounds and abs(median - bar) >= noise
        if (
            (far and (count > 1 or cost > _NOTICEABLE))
            or clear
            or count >= 3 * rounds
            or cost > budget
        ):
            return Measured(median, noise, cost)


class _Block(NamedTuple):
    """Seconds of the first step of a block, and the median of the others.

    The first step begins with an empty queue of the device, and may change the way: it is not
    compared, but it costs.
    """

    first: float
    median: float


def _a_block(steps: int) -> Steps[_Block]:
    first = yield
    median = yield from median_of_steps(steps)
    return _Block(float(first.seconds), median)


def median_of_steps(steps: int) -> Steps[float]:
    """Take steps and return the median of their seconds."""
    seconds: list[SupportsFloat] = []
    while len(seconds) < steps:
        taken = yield
        seconds.append(taken.seconds)
    return statistics.median(map(float, seconds))  # asked at the end: a GPU is waited for once


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

    def pause(self) -> None:
        """Leave out what happens until the next step begins: it is left out anyway."""

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
        self._last = self._last or self._mark()

    def end(self) -> None:
        """End a step or a part of one."""

    def pause(self) -> None:
        """Leave out what happens until the next step begins."""
        self._last = None

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
