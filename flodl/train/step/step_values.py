"""Values of single steps, recorded without making a step wait.

One-element tensors on a GPU are read together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch
    from torch import Tensor


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
class DeviceValues:
    """Keeps values on their device until their copies have arrived in host memory.

    One call of :meth:`take` starts a copy, and a later call finds it finished. So reading adds no
    wait to the queue of the device. Devices without asynchronous copies are read only with
    ``wait``.
    """

    __slots__ = ("_arriving", "_kept", "_steps")

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._steps: list[int] = []
        self._arriving: _Transfer | None = None

    def add(self, value: Tensor, step: int) -> None:
        """Keep the current value: later writes to the tensor do not change it."""
        self._kept.append(value.detach().reshape(()).clone())
        self._steps.append(step)

    def keep(self, value: Tensor, step: int) -> None:
        """Keep a tensor that nobody writes to, without a copy."""
        self._kept.append(value.detach().reshape(()))
        self._steps.append(step)

    def take(self, *, wait: bool) -> list[tuple[int, float]]:
        """Return the (step, value) pairs that have arrived, in order, and forget them.

        Args:
            wait: Wait until all have arrived.
        """
        arrived: list[tuple[int, float]] = []
        if self._arriving is not None and (wait or self._arriving.done()):
            arrived += self._arriving.read()
            self._arriving = None
        if not self._kept or self._arriving is not None:
            return arrived
        asynchronous = self._kept[0].is_cuda
        if wait or asynchronous:
            transfer = _Transfer(self._kept, self._steps, asynchronous=asynchronous)
            self._kept, self._steps = [], []
            if wait:
                arrived += transfer.read()
            else:
                self._arriving = transfer
        return arrived


@final
class _Transfer:
    """A copy of values to the host that is in progress."""

    def __init__(self, values: list[Tensor], steps: list[int], *, asynchronous: bool) -> None:
        # float64 holds every value of a floating dtype and integers up to 2^53; mps lacks it.
        dtype = torch.float32 if values[0].device.type == "mps" else torch.float64
        gathered = torch.stack(values).to(dtype)
        self._steps = steps
        self._landed: torch.cuda.Event | None = None
        if asynchronous:
            self._host = torch.empty(gathered.shape, dtype=dtype, pin_memory=True)
            self._host.copy_(gathered, non_blocking=True)
            self._landed = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._landed.record(torch.cuda.current_stream(gathered.device))
        else:
            self._host = gathered.cpu()

    def done(self) -> bool:
        """Whether the values can be read without waiting."""
        return self._landed is None or bool(self._landed.query())  # type: ignore[no-untyped-call]

    def read(self) -> list[tuple[int, float]]:
        """Wait for the values and return them with their steps."""
        if self._landed is not None:
            self._landed.synchronize()
        return list(zip(self._steps, self._host.tolist(), strict=True))
