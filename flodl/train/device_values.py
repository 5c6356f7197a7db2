"""One-element tensors on a GPU, read together without making a step wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

if TYPE_CHECKING:
    from torch import Tensor


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
