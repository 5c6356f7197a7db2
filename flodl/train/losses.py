"""The losses of one epoch: refused when not finite, averaged at the end."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, final

from flodl.errors import DivergedError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class LossLog(ABC):
    """Collects one loss per step of an epoch."""

    @abstractmethod
    def add(self, loss: Tensor) -> None:
        """Take the loss of the next step; an engine calls this before its optimizer steps.

        Args:
            loss: Detached, one element.

        Raises:
            DivergedError: The loss is not finite and can be read without waiting for a device.
        """

    @abstractmethod
    def check(self) -> None:
        """Make sure that all losses so far are finite.

        Raises:
            DivergedError: One is not; it names the first.
        """

    @abstractmethod
    def mean(self) -> float:
        """Return the mean over the steps.

        Raises:
            DivergedError: A loss is not finite.
        """


@final
class HostLossLog(LossLog):
    """For losses in host memory, where reading one costs nothing: checked at once."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._values: list[float] = []

    def add(self, loss: Tensor) -> None:
        """Take and check the loss of the next step."""
        value = loss.item()
        if not math.isfinite(value):
            raise _diverged(value, self._epoch, len(self._values))
        self._values.append(value)

    def check(self) -> None:
        """All losses were checked when they came."""

    def mean(self) -> float:
        """Return the mean over the steps."""
        return math.fsum(self._values) / len(self._values)


@final
class DeviceLossLog(LossLog):
    """For losses on an accelerator: kept there, so that no step waits for the device.

    Args:
        epoch: Number of the epoch, for messages.
        capacity: Largest number of steps.
    """

    def __init__(self, epoch: int, capacity: int) -> None:
        self._epoch = epoch
        self._capacity = capacity
        self._buffer: Tensor | None = None
        self._count = 0

    def add(self, loss: Tensor) -> None:
        """Keep the loss of the next step."""
        if self._buffer is None:
            self._buffer = loss.new_empty(self._capacity)
        self._buffer[self._count].copy_(loss)
        self._count += 1

    def check(self) -> None:
        """Read the losses and refuse the first that is not finite."""
        self._read()

    def mean(self) -> float:
        """Read the losses and return their mean."""
        return math.fsum(self._read()) / self._count

    def _read(self) -> list[float]:
        if self._buffer is None:
            return []
        values: list[float] = self._buffer[: self._count].tolist()
        for step, value in enumerate(values):
            if not math.isfinite(value):
                raise _diverged(value, self._epoch, step)
        return values


def loss_log(device: torch.device, epoch: int, capacity: int) -> LossLog:
    """Return the log that suits the device."""
    if device.type == "cpu":
        return HostLossLog(epoch)
    return DeviceLossLog(epoch, capacity)


def _diverged(value: float, epoch: int, step: int) -> DivergedError:
    return DivergedError(
        f"the loss is {value} at epoch {epoch}, step {step} (both counted from 0)",
        epoch=epoch,
        step=step,
    )
