"""Reading ahead by default: while nobody draws random numbers, and where it saves time.

Code of the user's usually runs where torch's loader would run it: when a batch is asked for, on the
thread that asks. A thread that reads ahead would draw random numbers earlier. So by default it
reads only as long as neither the data set nor the training draws from a generator of the program.
Then the batches are the same on either thread.

- The first batch of an epoch is read where it is asked for; in the first epoch also the second.
- Once a generator has moved, all batches are read there.
- So are they if reading fails on the thread, as with a connection that belongs to one thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, final

import torch
from torch import Tensor

from flodl.data.budget import CPU_DEPTH
from flodl.data.draws import fingerprint
from flodl.data.prefetch import Prefetcher
from flodl.data.transfer import Group
from flodl.errors import StateError

_WORTH_SECONDS = 200e-6
"""Reading beside a step saves the shorter of both. Handing over a batch takes about 40 µs."""


@final
class QuietReader:
    """Reads the batches of a data set ahead, as long as that cannot be noticed.

    Args:
        read: Reads a batch in host memory, on any thread.
        deliver: Brings a batch to the device that was read where it was asked for.
        device: The device of the batches.
    """

    def __init__(
        self,
        read: Callable[[Tensor], tuple[Tensor, ...]],
        deliver: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]],
        device: torch.device,
    ) -> None:
        self._read, self._deliver, self._device = read, deliver, device
        self._here = False
        """Whether all further batches are read where they are asked for."""
        self._worth = False
        """Whether both a step and a read took long enough."""

    @property
    def depth(self) -> int:
        """Batches that are read ahead; 0 before it is known that this cannot be noticed."""
        return CPU_DEPTH if self._worth and not self._here else 0

    def batches(
        self, rows: Callable[[], Iterator[Tensor]], thread: Callable[[], Prefetcher]
    ) -> Generator[tuple[Tensor, ...]]:
        """Yield a batch for each list of rows.

        Args:
            rows: Returns the lists; each call starts again at the first.
            thread: Returns the thread that reads ahead.
        """
        before, on_device = fingerprint(), self._device_state()
        left, number, stepped = rows(), 0, 0.0
        while (numbers := next(left, None)) is not None:
            began = time.perf_counter()
            batch = self._deliver(self._read(numbers))
            ended = time.perf_counter()
            number += 1
            # Steps draw from the device's generator, too, so it is compared before the first one.
            if number == 1 and self._device_state() != on_device:
                self._here = True
            self._worth = self._worth or min(ended - began, stepped) > _WORTH_SECONDS
            if self._worth and not self._here:
                self._here = fingerprint() != before or torch.get_default_device().type != "cpu"
            if self.depth:
                number += yield from self._ahead(batch, _Job(self._read, left, before), thread())
                left = islice(rows(), number, None)
                continue
            ended = time.perf_counter()
            yield batch
            stepped = time.perf_counter() - ended

    def _ahead(
        self, batch: tuple[Tensor, ...], job: _Job, thread: Prefetcher
    ) -> Generator[tuple[Tensor, ...], None, int]:
        """Yield a batch and those that the thread reads meanwhile; return how many it read."""
        owner, number = os.getpid(), 0
        with closing(thread.epoch(job.batches(), lambda: CPU_DEPTH)) as ahead:
            yield batch
            while os.getpid() == owner:  # a forked process has no thread, and reads on itself
                try:
                    found = next(ahead, None)
                except StateError:
                    raise
                except Exception:
                    self._here = True  # it is read again, and may succeed on this thread
                    found = None
                if found is None:
                    self._here = self._here or job.moved
                    break
                number += 1
                yield found
        return number

    def _device_state(self) -> bytes:
        if self._device.type != "cuda":
            return b""
        return torch.cuda.get_rng_state(self._device).numpy().tobytes()


@final
class _Job:
    """Reads for the thread, which must not keep the loader alive."""

    def __init__(
        self,
        read: Callable[[Tensor], tuple[Tensor, ...]],
        left: Iterator[Tensor],
        before: tuple[Any, ...],
    ) -> None:
        self._read, self._left, self._before = read, left, before
        self._grad = torch.is_grad_enabled()
        self.moved = False
        """Whether it ended because somebody has drawn a number."""

    def batches(self) -> Iterator[Group]:
        """Yield groups of one batch."""
        for numbers in self._left:
            # Here and not between two steps: after a step, nothing of this is in the caches.
            if fingerprint() != self._before:
                self.moved = True
                return
            with torch.set_grad_enabled(self._grad):
                batch = self._read(numbers)
            yield [batch]
