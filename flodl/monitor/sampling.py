"""Take samples at regular intervals, on a separate thread."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Protocol

from flodl import log
from flodl.monitor.resources import ResourceSample, ResourceSampler

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


PERIOD_SECONDS = 0.25


class LoadAverage:
    """Mean load between two calls, from readings of a daemon thread.

    A reading asks the kernel and the driver. This takes a few hundred microseconds, as long as the
    rest of the work at the end of an epoch. A call here takes a few microseconds.

    Args:
        sampler: Measures the machine.
        period: Seconds between two readings.
    """

    def __init__(
        self, sampler: LoadSampler | None = None, *, period: float = PERIOD_SECONDS
    ) -> None:
        self._sampler = sampler or ResourceSampler()
        self._period = period
        self._lock = threading.Lock()
        self._ticker: Ticker | None = None
        self._readings = _Means()
        self._answer = ResourceSample()

    def take(self) -> ResourceSample:
        """Return the mean since the last call; if there is no new reading, the last result.

        The first call measures at once, over the time since this object was made.
        """
        if self._ticker is None:
            return self._start()
        with self._lock:
            readings, self._readings = self._readings, _Means()
        self._answer = readings.sample() or self._answer
        return self._answer

    def newest(self) -> ResourceSample:
        """Return the newest reading; the mean of :meth:`take` does not change."""
        if self._ticker is None:
            return self._start()
        with self._lock:
            return self._readings.newest or self._answer

    def read(self) -> None:
        """Take a reading; the thread does this once per period."""
        sample = self._sampler.sample()
        with self._lock:
            self._readings.add(sample)

    def close(self) -> None:
        """Stop reading."""
        if self._ticker is not None:
            self._ticker.stop()

    def _start(self) -> ResourceSample:
        self._answer = self._sampler.sample()
        self._ticker = Ticker(self.read, self._period, name="flodl-load", wait=self._period)
        return self._answer


class _Means:
    """Means of percentages; for memory the newest value."""

    def __init__(self) -> None:
        self.newest: ResourceSample | None = None
        self._percent: dict[int | None, tuple[float, int]] = {}  # None: the processor

    def add(self, sample: ResourceSample) -> None:
        self.newest = sample
        of_gpus = [(gpu.device, gpu.util) for gpu in sample.gpus]
        for key, value in ((None, sample.cpu), *of_gpus):
            if value is not None:
                total, count = self._percent.get(key, (0.0, 0))
                self._percent[key] = total + value, count + 1

    def sample(self) -> ResourceSample | None:
        if self.newest is None:
            return None
        means = {key: total / count for key, (total, count) in self._percent.items()}
        gpus = tuple(
            dataclasses.replace(gpu, util=means.get(gpu.device)) for gpu in self.newest.gpus
        )
        return dataclasses.replace(self.newest, cpu=means.get(None), gpus=gpus)
