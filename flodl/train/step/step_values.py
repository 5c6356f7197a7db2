"""Learning rates, gradient norms and histograms of single steps, recorded for the monitor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, final

from torch import Tensor

from flodl.checkpoint.sharded import is_sharded
from flodl.monitor.media.histograms import histograms_of
from flodl.train.metrics import DeviceValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch
    from torch import nn

    from flodl.monitor import Monitor


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
