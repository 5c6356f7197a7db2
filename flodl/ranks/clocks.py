"""Times of ranks: how long batches take, how long a rank computes, how the clocks of ranks differ.

A rank can be slowed down, to simulate unequal ranks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, final

import torch

if TYPE_CHECKING:
    from flodl.ranks.group import Group


_AHEAD = 2
"""Batches the host may be ahead of a GPU: enough to keep it busy, few enough to time batches."""


@final
class BatchTimer:
    """Times each batch; on a simulated rank it also waits until the batch took long enough.

    Args:
        device: Device on which the batches are trained.
        batch_ms: Pad every batch to this duration in milliseconds.
        speed: Stretch every batch by ``1 / speed``.
        clock: Returns seconds that never run backwards.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        batch_ms: float | None = None,
        speed: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._seconds = batch_ms / 1000 if batch_ms is not None else 0.0
        self._stretch = 1.0 / speed if speed is not None else 1.0
        self._simulates = batch_ms is not None or speed is not None
        self._on_gpu = device.type == "cuda"
        self._events: deque[torch.cuda.Event] = deque()
        self._from = clock()

    def begin(self) -> None:
        """Start timing the next batch."""
        self._from = self._clock()

    def end_batch(self) -> float:
        """Return the milliseconds since the batch began; the next begins where this one ends."""
        if self._on_gpu:
            self._follow_gpu()
        began, now = self._from, self._clock()
        until = now
        if self._simulates:
            until = max(began + self._seconds, began + (now - began) * self._stretch)
            # If a sleep takes too long, the next batch waits less.
            if until > now:
                self._sleep(until - now)
        self._from = until
        return (until - began) * 1000

    def catch_up(self) -> float:
        """Wait for all work on the GPU; return the milliseconds since the last batch ended.

        Returns 0 on other devices.
        """
        if self._on_gpu:
            torch.cuda.synchronize()
            self._events.clear()
        began, self._from = self._from, self._clock()
        return (self._from - began) * 1000 if self._on_gpu else 0.0

    def _follow_gpu(self) -> None:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream())
        self._events.append(event)
        if len(self._events) > _AHEAD:
            self._events.popleft().synchronize()


ROUNDS = 16
"""Exchanges of times. Together they take a few milliseconds, and one quick exchange is enough."""


class ClockOffset(NamedTuple):
    """The offset that turns a time of a rank into a time of rank 0 when added."""

    ms: float
    within_ms: float
    """Largest possible error in milliseconds, as long as the clocks run equally fast."""


def clock_offsets(
    group: Group, now_ms: Callable[[], float], *, rounds: int = ROUNDS
) -> list[ClockOffset]:
    """Compare a clock of every rank with that of rank 0.

    A gather ends on a rank only after it has begun on all ranks. So rank ``r`` begins before
    rank 0 ends, and ends after rank 0 begins. Each round therefore bounds the offset from both
    sides; a shorter round gives closer bounds (F. Cristian, "Probabilistic clock
    synchronization", 1989). The result is the middle of the interval that fits all rounds
    (K. Marzullo and S. Owicki, "Maintaining the time in a distributed system", 1983). It is at
    least as exact as the shortest round alone.

    Clocks of hosts drift apart by a few milliseconds per minute at worst. So compare them when the
    times are merged.

    Collective: all ranks call it and get the same result.

    Args:
        group: All ranks.
        now_ms: A clock of this rank that never runs backwards, such as a timeline's
            ``elapsed_ms``. It may start at any value.
        rounds: Exchanges, at least 1.

    Returns:
        One offset per rank.

    Raises:
        ValueError: ``rounds`` is below 1.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds}: comparing clocks needs at least one exchange")
    begun: list[list[float]] = []
    ended: list[float] = []
    for _ in range(rounds):
        begun.append([row[0] for row in group.gather([now_ms()])])
        ended.append(now_ms())
    ends = group.gather(ended)
    offsets = []
    for rank in range(group.world_size):
        lowest = max(begun[i][0] - ends[rank][i] for i in range(rounds))
        highest = min(ends[0][i] - begun[i][rank] for i in range(rounds))
        offsets.append(ClockOffset((lowest + highest) / 2, abs(highest - lowest) / 2))
    # The offset of rank 0 to itself is exactly 0, which the rounds cannot show.
    offsets[0] = ClockOffset(0.0, 0.0)
    return offsets


_FORWARD = 1 / 3
"""Part of a simulated batch for the forward pass; a backward pass takes twice as long."""


class Stopwatch(Protocol):
    """Adds up the intervals between :meth:`start` and :meth:`stop`."""

    def start(self) -> None:
        """Begin an interval; do nothing if one has begun."""

    def stop(self) -> None:
        """End the interval."""

    def end_forward(self, batches: float) -> None:
        """Mark the end of a forward pass; a simulated rank sleeps here.

        Args:
            batches: How many whole batches the forward pass computed; may be a fraction.
        """

    def take(self, batches: float, *, wait: bool = False) -> float:
        """Return the milliseconds since the last call and reset to 0; 0 if they are unknown.

        Args:
            batches: How many whole batches were computed in this time; may be a fraction.
            wait: Whether to wait until the time is known.
        """


class HostWatch:
    """Measures with the host's clock; for ranks on the CPU and for simulated ranks.

    Args:
        simulated_ms: Sleep until a batch has taken this long; None: do not sleep.
    """

    def __init__(self, simulated_ms: float | None = None) -> None:
        self._simulated_ms = simulated_ms
        self._began: float | None = None
        self._ms = 0.0
        self._overslept_ms = 0.0

    def start(self) -> None:
        """Begin an interval."""
        if self._began is None:
            self._began = time.perf_counter()

    def stop(self) -> None:
        """End the interval."""
        if self._began is not None:
            self._ms += (time.perf_counter() - self._began) * 1e3
            self._began = None

    def end_forward(self, batches: float) -> None:
        """Sleep until the simulated forward pass is over."""
        if self._simulated_ms is not None and self._began is not None:
            ms = (time.perf_counter() - self._began) * 1e3
            time.sleep(max(0.0, self._simulated_ms * batches * _FORWARD - ms) / 1e3)

    def take(self, batches: float, *, wait: bool = False) -> float:  # noqa: ARG002 - known at once
        """Return the milliseconds."""
        ms, self._ms = self._ms, 0.0
        if self._simulated_ms is None:
            return ms
        due = max(ms, self._simulated_ms * batches - self._overslept_ms)
        began = time.perf_counter()
        time.sleep((due - ms) / 1e3)
        slept = (time.perf_counter() - began) * 1e3
        # If a sleep takes too long, the next one is shorter.
        self._overslept_ms = ms + slept - due
        return due + self._overslept_ms


class DeviceWatch:
    """Measures with events on the stream of a GPU, so that the host need not wait.

    While a step is not over, the time of an earlier step is used for it. This is exact enough,
    because speeds are means over many steps.
    """

    def __init__(self) -> None:
        self._began: torch.cuda.Event | None = None
        self._open: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._taken: list[tuple[float, list[tuple[torch.cuda.Event, torch.cuda.Event]]]] = []

    def start(self) -> None:
        """Begin an interval."""
        if self._began is None:
            self._began = _now()

    def stop(self) -> None:
        """End the interval."""
        if self._began is not None:
            self._open.append((self._began, _now()))
            self._began = None

    def end_forward(self, batches: float) -> None:
        """Do nothing: a GPU is not simulated."""

    def take(self, batches: float, *, wait: bool = False) -> float:
        """Return the time of the latest finished step, scaled to the batches of this step."""
        if wait and self._open:
            self._open[-1][1].synchronize()
        self._taken.append((batches, self._open))
        self._open = []
        over = [
            step
            for step in self._taken
            if all(end.query() for _, end in step[1])  # type: ignore[no-untyped-call]
        ]
        if not over:
            return 0.0
        latest = over[-1]
        self._taken = self._taken[self._taken.index(latest) + 1 :]
        computed, stretches = latest
        ms = sum(begin.elapsed_time(end) for begin, end in stretches)
        return ms / computed * batches if computed else 0.0


def _now() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
