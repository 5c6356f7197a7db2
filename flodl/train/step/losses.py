"""The losses of one epoch: refused if they are not finite, averaged at the end."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, final

from flodl.errors import DivergedError
from flodl.train.metrics import DeviceValues

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor


class LossLog(ABC):
    """Collects one loss per batch of an epoch.

    Args:
        epoch: Number of the epoch, for messages.
        sums: Total and count of an interrupted epoch, as :meth:`state` returned them.

    Attributes:
        record: Receives all losses of :meth:`take` before they are returned, also those that are
            not finite; None for nothing.
    """

    def __init__(self, epoch: int, sums: Sequence[float] = (0.0, 0)) -> None:
        self.record: Callable[[Sequence[float]], object] | None = None
        self._epoch = epoch
        self._total, self._count = float(sums[0]), int(sums[1])
        self._fresh: list[float] = []
        self._latest: float | None = None
        self._judged = 0
        self._unjudged: list[float] | None = None

    @abstractmethod
    def add(self, loss: Tensor) -> None:
        """Add the loss of the next batch; an engine calls this before its optimizer steps.

        Args:
            loss: Detached, one element.

        Raises:
            DivergedError: The loss is not finite and can be read without waiting for a device.
        """

    @abstractmethod
    def _arrive(self, *, wait: bool) -> None:
        """Check the losses that can be read (with ``wait``, all), and add them to ``_fresh``."""

    @property
    def latest(self) -> float | None:
        """The newest loss that has been read; None before the first."""
        return self._fresh[-1] if self._fresh else self._latest

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
        self._arrive(wait=wait)
        return self.unjudged()

    def unjudged(self) -> list[float]:
        """Return what :meth:`to_judge` would return of the losses that were read already."""
        values = (self._unjudged or []) + self._fresh[self._judged :]
        self._unjudged, self._judged = [], len(self._fresh)
        return values

    def check(self) -> None:
        """Check that all losses so far are finite; waits for the device.

        Raises:
            DivergedError: A loss is not finite; the error names the first one.
        """
        self._arrive(wait=True)

    def take(self) -> list[float]:
        """Return the losses that were read since the last call, in order; never waits.

        Raises:
            DivergedError: A loss is not finite.
        """
        self._arrive(wait=False)
        return self._settle()

    def state(self) -> list[float]:
        """Return total and count of the losses so far as JSON values; waits for the device.

        Raises:
            DivergedError: A loss is not finite.
        """
        self._arrive(wait=True)
        total = self._total
        for value in self._fresh:
            total += value
        return [total, self._count + len(self._fresh)]

    def mean(self) -> float:
        """Return the mean over the batches; waits for the device. It is nan without a batch.

        Raises:
            DivergedError: A loss is not finite.
        """
        total, count = self.state()
        return total / count if count else math.nan

    def _settle(self) -> list[float]:
        taken = list(self._fresh)
        if self._unjudged is not None:
            self._unjudged += taken[self._judged :]
            self._judged = 0
        self._fresh.clear()
        for value in taken:  # one by one: the mean does not depend on when losses were taken
            self._total += value
        self._count += len(taken)
        if taken:
            self._latest = taken[-1]
            if self.record is not None:
                self.record(taken)
        return taken

    def _refuse(self, value: float, step: int) -> DivergedError:
        return DivergedError(
            f"the loss is {value} at epoch {self._epoch}, step {step} (both counted from 0)",
            epoch=self._epoch,
            step=step,
            what=f"the loss is {value}",
        )


@final
class HostLossLog(LossLog):
    """For losses in host memory, where reading one costs nothing: checked at once."""

    def __init__(self, epoch: int, sums: Sequence[float] = (0.0, 0)) -> None:
        super().__init__(epoch, sums)
        self._append = self._fresh.append

    def add(self, loss: Tensor) -> None:
        """Add the loss of the next batch and check it."""
        value = loss.item()
        # False only for nan and the infinities, and cheaper than a function call.
        if value - value != 0.0:
            raise self._refuse(value, self._count + len(self._fresh))
        self._append(value)

    def _arrive(self, *, wait: bool) -> None:
        """Do nothing: all losses were checked in ``add``."""


@final
class DeviceLossLog(LossLog):
    """For losses on a GPU: they stay there, so that no step waits for the device."""

    def __init__(self, epoch: int, sums: Sequence[float] = (0.0, 0)) -> None:
        super().__init__(epoch, sums)
        self._values = DeviceValues()
        self._added = self._count

    def add(self, loss: Tensor) -> None:
        """Keep the loss of the next batch."""
        self._values.add(loss, self._added)
        self._added += 1

    def _arrive(self, *, wait: bool) -> None:
        for step, value in self._values.take(wait=wait):
            if not math.isfinite(value):
                raise self._refuse(value, step)
            self._fresh.append(value)


@final
class SampleLossLog(LossLog):
    """For one of several ranks: every sample has the same weight, whatever its batch.

    A loss that is not finite is left out and counted in :attr:`refused`, because the other ranks
    can continue without this one.

    Args:
        epoch: Number of the epoch, for messages.
        sums: Sum over the samples and their number, as :meth:`state` returned them.
        on_device: Whether the losses are on a GPU, so that steps must not wait for them.
        strict: Raise for a loss that is not finite, as the other logs do.
        first_step: Number of the first batch, for messages.
    """

    def __init__(
        self,
        epoch: int,
        sums: Sequence[float] = (0.0, 0),
        *,
        on_device: bool = False,
        strict: bool = False,
        first_step: int = 0,
    ) -> None:
        super().__init__(epoch, sums)
        self._values = DeviceValues() if on_device else None
        self._strict = strict
        self._samples, self._step = 1, first_step
        self._waiting: deque[int] = deque()
        self._refused = 0
        self._seen: list[float] = []
        """All losses since the last :meth:`take`, if they are recorded."""

    @property
    def refused(self) -> int:
        """Number of losses that were not finite, among those that have been read."""
        return self._refused

    def expect(self, samples: int) -> None:
        """Set how many samples each of the next batches has."""
        self._samples = samples

    def add(self, loss: Tensor) -> None:
        """Add the loss of the next batch.

        Raises:
            DivergedError: It is not finite, can be read at once, and the log is strict.
        """
        step, self._step = self._step, self._step + 1
        if self._values is None:
            self._enter(loss.item(), step, self._samples)
        else:
            self._values.add(loss, step)
            self._waiting.append(self._samples)

    def unjudged(self) -> list[float]:
        """Return the losses that were read since the last call, also those that are not finite."""
        values, self._unjudged = self._unjudged or [], []
        return values

    def state(self) -> list[float]:
        """Return the sum of the losses over the samples, and their number, as JSON values.

        Waits for the device.

        Raises:
            DivergedError: A loss is not finite and the log is strict.
        """
        self._arrive(wait=True)
        return [self._total, self._count]

    def _arrive(self, *, wait: bool) -> None:
        if self._values is not None:
            for step, value in self._values.take(wait=wait):
                self._enter(value, step, self._waiting.popleft())

    def _enter(self, value: float, step: int, samples: int) -> None:
        if self.record is not None:
            self._seen.append(value)
        if self._unjudged is not None:
            self._unjudged.append(value)
        if math.isfinite(value):
            self._total += value * samples
            self._count += samples
            self._fresh.append(value)
        elif self._strict:
            raise self._refuse(value, step)
        else:
            self._refused += 1

    def _settle(self) -> list[float]:
        taken = list(self._fresh)
        self._fresh.clear()
        if taken:
            self._latest = taken[-1]
        if self._seen and self.record is not None:
            self.record(self._seen)
            self._seen = []
        return taken


def loss_log(
    device: torch.device, epoch: int, sums: Sequence[float] = (0.0, 0)
) -> HostLossLog | DeviceLossLog:
    """Return the log for a device."""
    return HostLossLog(epoch, sums) if device.type == "cpu" else DeviceLossLog(epoch, sums)
