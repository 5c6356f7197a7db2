"""Take samples at regular intervals, on a separate thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from flodl import log
from flodl.monitor.resources import ResourceSample

STOP_SECONDS = 1.0
"""Time that a stop waits for a sampler that does not respond."""


class LoadSampler(Protocol):
    """Measures the machine, such as :class:`~flodl.monitor.resources.ResourceSampler`."""

    def sample(self) -> ResourceSample:
        """Measure now."""


class BusyMeter:
    """Measures the time that a rank works on batches, for the busy percentage of samples.

    One thread calls :meth:`begin` and :meth:`end`, another thread calls :meth:`percent`.

    Args:
        clock: Seconds that never decrease.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # One tuple, so that the other thread never sees a partial change.
        self._state: tuple[float, float | None] = (0.0, None)
        self._read_at: float | None = None
        self._read = 0.0

    def begin(self) -> None:
        """Mark the beginning of work; does nothing if it has already begun."""
        total, since = self._state
        if since is None:
            now = self._clock()
            self._state = (total, now)
            if self._read_at is None:
                self._read_at = now

    def end(self) -> None:
        """Mark the end of work; does nothing if none has begun."""
        total, since = self._state
        if since is not None:
            self._state = (total + self._clock() - since, None)

    def percent(self) -> float | None:
        """Return the busy percentage of the time since the last call; None before any work."""
        total, since = self._state
        now = self._clock()
        if self._read_at is None or now <= self._read_at:
            return None
        if since is not None:
            total += max(0.0, now - since)
        part = 100 * (total - self._read) / (now - self._read_at)
        self._read, self._read_at = total, now
        return round(min(100.0, max(0.0, part)), 2)


class Ticker:
    """Calls a function at regular intervals until it is stopped.

    If a call takes longer than the interval, intervals are skipped. If a call raises, the thread
    ends with one warning, because monitoring must not end a training.

    Args:
        call: The function to call.
        seconds: Interval between calls.
        name: Name of the thread.
        wait: Seconds before the first call.
    """

    def __init__(
        self, call: Callable[[], None], seconds: float, *, name: str, wait: float = 0.0
    ) -> None:
        self._call = call
        self._seconds = seconds
        self._wait = wait
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a call that hangs is abandoned after :data:`STOP_SECONDS`."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(STOP_SECONDS)
            if self._thread.is_alive():
                log.warning(
                    f"{self._thread.name}: the sampler did not return within {STOP_SECONDS:g} s; "
                    "its thread is left behind"
                )

    def _run(self) -> None:
        due = time.monotonic() + self._wait
        while not self._stop.wait(due - time.monotonic()):
            try:
                self._call()
            except Exception as error:
                log.warning(f"{self._thread.name}: no more samples, training continues: {error!r}")
                return
            due = max(due + self._seconds, time.monotonic())
