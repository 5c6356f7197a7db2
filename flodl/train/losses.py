"""The losses of one epoch: refused when not finite, averaged at the end."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, final

from flodl.errors import DivergedError
from flodl.train.device_values import DeviceValues

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor


class LossLog(ABC):
    """Collects one loss per batch of an epoch.

    Args:
        epoch: Number of the epoch, for messages.
        sums: Total and count of an epoch that was interrupted, as :meth:`state` gave them.
    """

    def __init__(self, epoch: int, sums: Sequence[float] = (0.0, 0)) -> None:
        self._epoch = epoch
        self._total, self._count = float(sums[0]), int(sums[1])
        self._fresh: list[float] = []
        self._latest: float | None = None

    @abstractmethod
    def add(self, loss: Tensor) -> None:
        """Take the loss of the next batch; an engine calls this before its optimizer steps.

        Args:
            loss: Detached, one element.

        Raises:
            DivergedError: The loss is not finite and can be read without waiting for a device.
        """

    @abstractmethod
    def _arrive(self, *, wait: bool) -> None:
        """Check the losses that can be read (all, if told to wait) and add them to the fresh."""

    @property
    def latest(self) -> float | None:
        """The newest loss that has been read; None before the first."""
        return self._fresh[-1] if self._fresh else self._latest

    def check(self) -> None:
        """Make sure that all losses so far are finite; waits for the device.

        Raises:
            DivergedError: One is not; it names the first.
        """
        self._arrive(wait=True)

    def take(self) -> list[float]:
        """Return the losses that were read since the last time, in order; never waits.

        Raises:
            DivergedError: A loss is not finite.
        """
        self._arrive(wait=False)
        return self._settle()

    def state(self) -> list[float]:
        """Return total and count of the losses so far; waits for the device. JSON values.

        Raises:
            DivergedError: A loss is not finite.
        """
        self._arrive(wait=True)
        total = self._total
        for value in self._fresh:
            total += value
        return [total, self._count + len(self._fresh)]

    def mean(self) -> float:
        """Return the mean over the batches; waits for the device. nan without a batch.

        Raises:
            DivergedError: A loss is not finite.
        """
        total, count = self.state()
        return total / count if count else math.nan

    def _settle(self) -> list[float]:
        taken = list(self._fresh)
        self._fresh.clear()
        for value in taken:  # one by one: the mean does not depend on when losses were taken
            self._total += value
        self._count += len(taken)
        if taken:
            self._latest = taken[-1]
        return taken

    def _refuse(self, value: float, step: int) -> DivergedError:
        return DivergedError(
            f"the loss is {value} at epoch {self._epoch}, step {step} (both counted from 0)",
            epoch=self._epoch,
            step=step,
        )


@final
class HostLossLog(LossLog):
    """For losses in host memory, where reading one costs nothing: checked at once."""

    def __init__(self, epoch: int, sums: Sequence[float] = (0.0, 0)) -> None:
        super().__init__(epoch, sums)
        self._append = self._fresh.append

    def add(self, loss: Tensor) -> None:
        """Take and check the loss of the next batch."""
        value = loss.item()
        # False for nan and the infinities alone, and cheaper than a function.
        if value - value != 0.0:
            raise self._refuse(value, self._count + len(self._fresh))
        self._append(value)

    def _arrive(self, *, wait: bool) -> None:
        """All losses were checked when they came."""


@final
class DeviceLossLog(LossLog):
    """For losses on an accelerator: kept there, so that no step waits for the device."""

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


def loss_log(
    device: torch.device, epoch: int, sums: Sequence[float] = (0.0, 0)
) -> HostLossLog | DeviceLossLog:
    """Return the log that suits the device."""
    return HostLossLog(epoch, sums) if device.type == "cpu" else DeviceLossLog(epoch, sums)
