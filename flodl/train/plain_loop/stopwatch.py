"""Measure how long this rank computes, without waiting for others."""

from __future__ import annotations

import time
from typing import Protocol

import torch

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
