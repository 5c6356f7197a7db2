"""The losses of one epoch: refused if they are not finite, averaged at the end."""

from __future__ import annotations

import math
from itertools import repeat
from typing import TYPE_CHECKING, final

from flodl.errors import DivergedError
from flodl.train.metrics import DeviceValues

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor


@final
class LossLog:
    """Collects one loss per batch of an epoch.

    In host memory, reading a loss costs nothing: each is checked at once. On a GPU the losses stay
    there, so that no step waits for the device.

    Args:
        epoch: Number of the epoch, for messages.
        sums: Total and count of an interrupted epoch, as :meth:`state` returned them.
        on_device: Whether the losses are on a GPU.
        by_samples: For one of several ranks: every sample has the same weight, whatever its batch.
            A loss that is not finite is left out and counted in :attr:`refused`, because the other
            ranks can continue without this one.

    Attributes:
        record: Receives all losses of :meth:`take` before they are returned, also those that are
            not finite; None for nothing.
        refused: Number of losses that were left out, among those that have been read.
        refuses_at_once: Whether a loss that is not finite ends its own step.
    """

    def __init__(
        self,
        epoch: int,
        sums: Sequence[float] = (0.0, 0),
        *,
        on_device: bool = False,
        by_samples: bool = False,
    ) -> None:
        self.record: Callable[[Sequence[float]], object] | None = None
        self.refused = 0
        self.refuses_at_once = not (on_device or by_samples)
        self._values = DeviceValues() if on_device else None
        self._epoch, self._by_samples = epoch, by_samples
        self._total, self._count = float(sums[0]), int(sums[1])
        self._added = 0 if by_samples else self._count
        self._samples, self._weights = 1, list[int]()
        self._fresh: list[float] = []
        self._append = self._fresh.append
        self._latest: float | None = None
        self._judged = 0
        self._unjudged: list[float] | None = None

    def expect(self, samples: int) -> None:
        """Set how many samples each of the next batches has."""
        self._samples = samples

    def add(self, loss: Tensor) -> None:
        """Add the loss of the next batch; an engine calls this before its optimizer steps.

        Args:
            loss: Detached, one element.

        Raises:
            DivergedError: The loss is not finite and can be read without waiting for a device.
        """
        if self._by_samples:
            self._weights.append(self._samples)
        if self._values is not None:
            self._values.add(loss, self._added)
            self._added += 1
            return
        value = loss.item()
        # Unequal only for nan and the infinities, and cheaper than a function call.
        if value - value != 0.0:
            self._refuse(value, self._count + len(self._fresh))
        self._append(value)

    def check(self, *, wait: bool = True) -> None:
        """Check that the losses are finite: all so far, or those that can be read without waiting.

        Raises:
            DivergedError: A loss is not finite; the error names the first one.
        """
        if self._values is not None:
            for step, value in self._values.take(wait=wait):
                if not math.isfinite(value):
                    self._refuse(value, step)
                self._append(value)

    @property
    def latest(self) -> float | None:
        """The newest loss that has been read; None before the first."""
        return next(filter(math.isfinite, reversed(self._fresh)), self._latest)

    def keep_for_judge(self) -> None:
        """Keep the losses from now on until :meth:`to_judge` returns them."""
        self._unjudged, self._judged = [], len(self._fresh)

    def to_judge(self, *, wait: bool = False) -> list[float]:
        """Return the losses that were read since the last call; :meth:`take` does not change that.

        Args:
            wait: Wait for the device, and return all.

        Raises:
            DivergedError: A loss is not finite.
        """
        self.check(wait=wait)
        return self.unjudged()

    def unjudged(self) -> list[float]:
        """Return what :meth:`to_judge` would return of the losses that were read already."""
        values = (self._unjudged or []) + self._fresh[self._judged :]
        self._unjudged, self._judged = [], len(self._fresh)
        return values

    def take(self) -> list[float]:
        """Return the losses that were read since the last call, in order; never waits.

        Raises:
            DivergedError: A loss is not finite.
        """
        self.check(wait=False)
        self._total, self._count = self._sums()
        read = list(self._fresh)
        del self._weights[: len(read)]
        self._fresh.clear()
        if self._unjudged is not None:
            self._unjudged += read[self._judged :]
            self._judged = 0
        taken = list(filter(math.isfinite, read)) if self.refused else read
        if taken:
            self._latest = taken[-1]
        if read and self.record is not None:
            self.record(read)
        return taken

    def state(self) -> list[float]:
        """Return total and count of the losses so far as JSON values; waits for the device.

        Raises:
            DivergedError: A loss is not finite.
        """
        self.check()
        return list(self._sums())

    def mean(self) -> float:
        """Return the mean; waits for the device. It is nan without a batch.

        Raises:
            DivergedError: A loss is not finite.
        """
        total, count = self.state()
        return total / count if count else math.nan

    def _sums(self) -> tuple[float, int]:
        total, count = self._total, self._count
        weights = self._weights if self._by_samples else repeat(1)
        # One by one: the mean does not depend on when losses were taken.
        for value, samples in zip(self._fresh, weights, strict=False):
            if value - value == 0.0:
                total += value * samples
                count += samples
        return total, count

    def _refuse(self, value: float, step: int) -> None:
        if self._by_samples:
            self.refused += 1
            return
        raise DivergedError(
            f"the loss is {value} at epoch {self._epoch}, step {step} (both counted from 0)",
            epoch=self._epoch,
            step=step,
            what=f"the loss is {value}",
        )


def loss_log(device: torch.device, epoch: int) -> LossLog:
    """Return the log for a device."""
    return LossLog(epoch, on_device=device.type != "cpu")
