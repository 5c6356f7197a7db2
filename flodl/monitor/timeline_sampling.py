"""Taking samples at a steady pace on a thread of their own."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from flodl import log
from flodl.monitor.resources import GpuSnapshot, ResourceSample, ResourceSampler

STOP_SECONDS = 1.0
"""How long a stop waits for a sampler that hangs."""


class LoadSampler(Protocol):
    """Measures the machine, such as :class:`~flodl.monitor.resources.ResourceSampler`."""

    def sample(self) -> ResourceSample:
        """Measure now."""


class FineSampler:
    """A :class:`ResourceSampler` that also reads the GPUs' utilisation at every sample.

    The sampler alone hears of it once a second, which leaves most samples of a timeline without.
    """

    def __init__(self) -> None:
        self._resources = ResourceSampler()
        self._silent: set[int] = set()  # devices whose driver does not tell

    def sample(self) -> ResourceSample:
        """Measure now."""
        sample = self._resources.sample()
        gpus = tuple(self._with_utilisation(gpu) for gpu in sample.gpus)
        return dataclasses.replace(sample, gpus=gpus)

    def close(self) -> None:
        """Stop what runs in the background."""
        self._resources.close()

    def _with_utilisation(self, gpu: GpuSnapshot) -> GpuSnapshot:
        if gpu.device in self._silent:
            return gpu
        torch: Any = sys.modules["torch"]  # without it the sampler would have found no GPU
        try:
            return dataclasses.replace(gpu, util=float(torch.cuda.utilization(gpu.device)))
        except Exception:  # no NVML, no permission, a lost GPU: all the same
            self._silent.add(gpu.device)
            return gpu


class BusyMeter:
    """Adds up the time that a rank works on batches, for the busy percentage of samples.

    One thread calls :meth:`begin` and :meth:`end`, another one :meth:`percent`.

    Args:
        clock: Seconds that never run backwards.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # One tuple, so that the other thread never sees half of a change.
        self._state: tuple[float, float | None] = (0.0, None)
        self._read_at: float | None = None
        self._read = 0.0

    def begin(self) -> None:
        """Work begins; does nothing while it is under way."""
        total, since = self._state
        if since is None:
            now = self._clock()
            self._state = (total, now)
            if self._read_at is None:
                self._read_at = now

    def end(self) -> None:
        """Work ends; does nothing where none is under way."""
        total, since = self._state
        if since is not None:
            self._state = (total + self._clock() - since, None)

    def percent(self) -> float | None:
        """Return the part of the time since the last call, in percent; None before any work."""
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
    """Calls a function at a steady pace until it is stopped.

    A call that takes longer than the interval makes the pace skip, not hurry. A call that raises
    ends the thread, with one warning: watching must not end a training.

    Args:
        call: What to do.
        seconds: From one call to the next; the first comes at once.
        name: Of the thread.
    """

    def __init__(self, call: Callable[[], None], seconds: float, *, name: str) -> None:
        self._call = call
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a call that hangs is left behind after :data:`STOP_SECONDS`."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(STOP_SECONDS)
            if self._thread.is_alive():
                log.warning(
                    f"{self._thread.name}: the sampler did not return within {STOP_SECONDS:g} s; "
                    "its thread is left behind"
                )

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            try:
                self._call()
            except Exception as error:
                log.warning(f"{self._thread.name}: no more samples, training goes on: {error!r}")
                return
            due = max(due + self._seconds, time.monotonic())
            self._stop.wait(due - time.monotonic())
