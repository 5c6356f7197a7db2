"""The machine's mean load, measured on a separate thread so that training does not wait."""

from __future__ import annotations

import dataclasses
import threading

from flodl.monitor.resources import ResourceSample, ResourceSampler
from flodl.monitor.sampling import LoadSampler, Ticker

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
