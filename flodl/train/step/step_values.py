"""What steps record: losses, learning rates, gradient norms and histograms."""

from __future__ import annotations

import math
from itertools import repeat
from typing import TYPE_CHECKING, Any, final

from torch import Tensor

from flodl.checkpoint.sharded import is_sharded
from flodl.errors import DivergedError
from flodl.monitor.media.histograms import histograms_of
from flodl.train.metrics import DeviceValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch
    from torch import nn

    from flodl.monitor import Monitor


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


@final
class StepValues:
    """Keeps what a step computes anyway, until a reporter fetches it.

    A step appends one pair to a list. Norms stay on their device and are fetched in blocks.

    Attributes:
        rates: (step, learning rate) of steps whose rate came from a schedule.
        norms: (step, total 2-norm of the gradients before clipping), one element each.
        on_norms: Called with norms that have arrived, in the order of their steps.
    """

    __slots__ = ("_arriving", "_count", "_optimizer", "_total", "lr", "norms", "on_norms", "rates")

    def __init__(self) -> None:
        self.rates: list[tuple[int, float]] = []
        self.norms: list[tuple[int, Tensor]] = []
        self.lr: float | None = None
        """The newest learning rate of the first parameter group; None if it is unknown."""
        self.on_norms: Callable[[list[float]], object] | None = None
        self._arriving = DeviceValues()
        self._optimizer: torch.optim.Optimizer | None = None
        self._total, self._count = 0.0, 0

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Read the learning rate of this optimizer when no schedule of flodl sets it."""
        self._optimizer = optimizer

    def begin_epoch(self) -> None:
        """Begin a new mean of :attr:`grad_norm`."""
        self._total, self._count = 0.0, 0

    @property
    def grad_norm(self) -> float | None:
        """Mean of the finite norms of this epoch that have arrived; None without one."""
        return self._total / self._count if self._count else None

    def take(self, step: int, *, wait: bool) -> Iterator[tuple[str, list[int], list[float]]]:
        """Yield name, steps and values of what was recorded since the last call.

        Args:
            step: The last step that was done, counted from 0.
            wait: Wait for values that a device has not computed yet.
        """
        rates = self.rates[:]
        del self.rates[: len(rates)]
        if not rates and (rate := self._current(wait=wait)) is not None:
            rates = [(step, rate)]
        if rates:
            self.lr = rates[-1][1]
            yield "lr", [at for at, _ in rates], [rate for _, rate in rates]
        arrived = self.take_norms(wait=wait)
        if arrived:
            finite = [norm for _, norm in arrived if math.isfinite(norm)]
            self._total, self._count = self._total + math.fsum(finite), self._count + len(finite)
            yield "grad_norm", [at for at, _ in arrived], [norm for _, norm in arrived]

    def take_norms(self, *, wait: bool) -> list[tuple[int, float]]:
        """Return the (step, norm) pairs that have arrived, in order, and forget them.

        Args:
            wait: Wait for values that a device has not computed yet.
        """
        norms = self.norms[:]
        del self.norms[: len(norms)]
        if norms and norms[0][1].device.type == "cpu":
            arrived = [(at, norm.item()) for at, norm in norms]
        else:
            for at, norm in norms:
                self._arriving.keep(norm, at)
            arrived = self._arriving.take(wait=wait)
        if arrived and self.on_norms is not None:
            self.on_norms([norm for _, norm in arrived])
        return arrived

    def _current(self, *, wait: bool) -> float | None:
        if self._optimizer is None:
            return None
        rate = self._optimizer.param_groups[0].get("lr")
        if isinstance(rate, Tensor):
            # Reading a value from a GPU waits for all its work.
            return float(rate) if wait or rate.device.type == "cpu" else None
        return float(rate) if isinstance(rate, int | float) else None


@final
class ParameterHistograms:
    """Records histograms of all trainable parameters, when an engine says that gradients are ready.

    Names are ``weights/NAME`` and ``gradients/NAME``, with the names of the model. A sharded
    parameter is left out: a rank has only a part of it.

    Args:
        model: The model.
        monitor: Receives the histograms.
        every: Optimizer steps between two records.
    """

    def __init__(self, model: nn.Module, monitor: Monitor, every: int) -> None:
        self._parameters = [
            (name, parameter)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and not is_sharded(parameter) and parameter.numel()
        ]
        self._monitor = monitor
        self._every = every

    def __call__(self, global_step: int, scale: float = 1.0, *, gradients: bool = True) -> None:
        """Record one step, if it is due.

        Args:
            global_step: Optimizer steps done before.
            scale: Factor of the loss, by which gradients are divided.
            gradients: Whether the gradients of the step can be read.
        """
        if global_step and (global_step + 1) % self._every:
            return
        found: list[tuple[str, Tensor, float]] = []
        for name, parameter in self._parameters:
            found += _dense(f"weights/{name}", parameter.detach(), 1.0)
            gradient = parameter.grad if gradients else None
            if gradient is not None:
                found += _dense(f"gradients/{name}", gradient.detach(), scale)
        counted = histograms_of([(values, divisor) for _, values, divisor in found])
        named = [(name, reader) for (name, *_), reader in zip(found, counted, strict=True)]
        self._monitor.record_histograms(named, step=global_step + 1)


def _dense(name: str, values: Tensor, scale: float) -> list[tuple[str, Tensor, float]]:
    """Return real values with a name and a divisor; nothing if there are no values."""
    dense: Any = values.coalesce().values() if values.is_sparse else values
    if dense.is_complex():
        dense = dense.abs()
    return [(name, dense, scale)] if dense.numel() else []
