"""Time the batches of one rank, and slow it down for simulations."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import final

import torch

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
