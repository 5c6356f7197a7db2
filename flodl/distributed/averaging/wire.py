"""Ways for tensors through the ranks: from device to device, or through host memory.

A wire takes the tensors of this rank and a weight, and gives back the weighted average of each
over the ranks. It owns its buffers and uses them again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from flodl.distributed.averaging.buckets import Buckets, Slot
from flodl.distributed.averaging.pinned import PinnedRoad
from flodl.distributed.config import Backend

if TYPE_CHECKING:
    from flodl.distributed.group import Group, Pending


@final
@dataclass(frozen=True, slots=True)
class Sums:
    """What came along with the averages.

    Attributes:
        weight: Of all ranks together.
        broken: Ranks that were left out because a value was not finite.
        finite: Whether this rank is none of them.
        extra: Sums of the numbers that rode along.
    """

    weight: float
    broken: int
    finite: bool
    extra: list[float]


class Exchange(ABC):
    """Averages that are on their way; the buffers belong to them until they were used."""

    @abstractmethod
    def done(self) -> bool:
        """Whether :meth:`wait` would not wait for another rank."""

    @abstractmethod
    def wait(self) -> Sums:
        """Wait for the sums."""

    @abstractmethod
    def averages(self) -> list[Tensor]:
        """Return the average for each slot, once, after :meth:`wait` told a weight above 0.

        They are views that the next exchange overwrites.
        """


class Wire(ABC):
    """A way through the ranks; one exchange at a time."""

    @abstractmethod
    def send(
        self,
        slots: Sequence[Slot],
        tensors: Sequence[Tensor | None],
        weight: float,
        extra: Sequence[float] = (),
    ) -> Exchange:
        """Copy the tensors and begin to average them.

        Args:
            slots: Equal on all ranks; at least one of them is summed.
            tensors: One per slot, real; None counts as zeros.
            weight: Of this rank; 0 sends zeros.
            extra: Numbers to sum up on the way, in the precision of the first bucket.
        """


def wire_for(group: Group, backend: Backend) -> Wire:
    """Return the wire of a backend."""
    if backend is Backend.NCCL:
        return DirectWire(group, group.device)
    return HostWire(group)


_WEIGHT, _BROKEN, _EXTRA = range(3)
"""Places in the trailer."""


@final
class DirectWire(Wire):
    """Sums on one device, without a detour.

    Args:
        group: The ranks.
        device: Of the buffers.
        wide: Sum everything in float64.
    """

    def __init__(self, group: Group, device: torch.device, *, wide: bool = False) -> None:
        self._group, self._device, self._wide = group, device, wide
        self._laid_out: tuple[tuple[Slot, ...], int] | None = None
        self._buckets: Buckets

    def send(
        self,
        slots: Sequence[Slot],
        tensors: Sequence[Tensor | None],
        weight: float,
        extra: Sequence[float] = (),
    ) -> Exchange:
        """Copy the tensors and begin to average them."""
        buckets = self._room_for(tuple(slots), _EXTRA + len(extra))
        # Alone, the average is what the rank has; n·x/n would not be that to the last bit.
        alone = self._group.world_size == 1
        buckets.fill(tensors, float(weight > 0) if alone else weight)
        healthy = _finite(buckets) if weight > 0 else None
        trailer = torch.tensor([weight, 0.0, *extra], dtype=torch.float64)
        if healthy is None:
            buckets.trailer.copy_(trailer)
        elif healthy.device.type == "cpu":
            _leave_out_if_broken(buckets, trailer, healthy)
        else:
            _leave_out_unasked(buckets, trailer, healthy)
        pending = [
            self._group.all_reduce_later(bucket.flat, maximum=bucket.takes_maximum)
            for bucket in buckets.all
        ]
        return _DirectExchange(buckets, pending, healthy, alone=alone)

    def _room_for(self, slots: tuple[Slot, ...], trailing: int) -> Buckets:
        if self._laid_out != (slots, trailing):
            room = [slot.widened for slot in slots] if self._wide else slots
            self._buckets = Buckets(room, self._device, trailing=trailing)
            self._laid_out = (slots, trailing)
        return self._buckets


def _finite(buckets: Buckets) -> Tensor | None:
    """Whether all that must be finite is, on the device; None where nothing must be."""
    # A sum is finite only if everything in it is, and takes a single pass.
    found = [bucket.checked.sum().isfinite() for bucket in buckets.sums if len(bucket.checked)]
    return torch.stack(found).all() if found else None


def _leave_out_if_broken(buckets: Buckets, trailer: Tensor, healthy: Tensor) -> None:
    """Send zeros of weight 0 if a value is not finite."""
    if not healthy:
        trailer[_WEIGHT], trailer[_BROKEN] = 0.0, 1.0
        for bucket in buckets.sums:
            bucket.values.zero_()
    buckets.trailer.copy_(trailer)


def _leave_out_unasked(buckets: Buckets, trailer: Tensor, healthy: Tensor) -> None:
    """Do the same on a GPU, which decides by itself: the host need not wait for it."""
    for bucket in buckets.sums:
        torch.where(healthy, bucket.values, bucket.values.new_zeros(()), out=bucket.values)
    target = buckets.trailer
    target.copy_(trailer)
    target[_WEIGHT].mul_(healthy)
    target[_BROKEN].copy_(~healthy)


@final
class _DirectExchange(Exchange):
    """Buckets that are being summed."""

    def __init__(
        self, buckets: Buckets, pending: Sequence[Pending], healthy: Tensor | None, *, alone: bool
    ) -> None:
        self._buckets, self._pending, self._healthy = buckets, pending, healthy
        self._alone = alone
        self._weight = 0.0

    def done(self) -> bool:
        return all(pending.done() for pending in self._pending)

    def wait(self) -> Sums:
        for pending in self._pending:
            pending.wait()
        self._weight, broken, *extra = self._buckets.trailer.tolist()
        finite = self._healthy is None or bool(self._healthy)
        return Sums(self._weight, round(broken), finite, extra)

    def averages(self) -> list[Tensor]:
        if not self._alone:
            for bucket in self._buckets.sums:
                bucket.values.div_(self._weight)
        return self._buckets.views


@final
class HostWire(Wire):
    """Sums in host memory, in float64.

    Args:
        group: The ranks; averages end up on their device.
    """

    def __init__(self, group: Group) -> None:
        self._device = group.device
        self._inner = DirectWire(group, torch.device("cpu"), wide=True)
        self._slots: tuple[Slot, ...] = ()
        self._stage: Buckets
        self._road: PinnedRoad | None = None

    def send(
        self,
        slots: Sequence[Slot],
        tensors: Sequence[Tensor | None],
        weight: float,
        extra: Sequence[float] = (),
    ) -> Exchange:
        """Copy the tensors and begin to average them."""
        if self._slots != tuple(slots):
            self._slots = tuple(slots)
            self._stage = Buckets(slots, self._device)
            on_gpu = self._device.type == "cuda"
            self._road = PinnedRoad(slots, self._device) if on_gpu else None
        if self._road is None:
            return _HostExchange(self._stage, self._inner.send(slots, tensors, weight, extra))
        self._stage.fill(tensors)
        self._road.leave(self._stage)
        return _FarExchange(
            self._stage, self._road, lambda host: self._inner.send(slots, host, weight, extra)
        )


@final
class _HostExchange(Exchange):
    """Sums of tensors that were in host memory anyway."""

    def __init__(self, stage: Buckets, inner: Exchange) -> None:
        self._stage, self._inner = stage, inner

    def done(self) -> bool:
        return self._inner.done()

    def wait(self) -> Sums:
        return self._inner.wait()

    def averages(self) -> list[Tensor]:
        for view, wide in zip(self._stage.views, self._inner.averages(), strict=True):
            view.copy_(wide)
        return self._stage.views


@final
class _FarExchange(Exchange):
    """Sums of what is on its way from a GPU: a thread waits for it, and for the other ranks."""

    def __init__(
        self, stage: Buckets, road: PinnedRoad, send: Callable[[list[Tensor]], Exchange]
    ) -> None:
        self._stage, self._road, self._send = stage, road, send
        self._sums: Sums | None = None
        self._failure: BaseException | None = None
        # A daemon: at the end of a program nobody waits for ranks that are gone.
        self._thread = Thread(target=self._carry, name="flodl-average", daemon=True)
        self._thread.start()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> Sums:
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        assert self._sums is not None  # noqa: S101 - the thread ended without a failure
        return self._sums

    def averages(self) -> list[Tensor]:
        self._stage.copy_(self._road.host)
        return self._stage.views

    def _carry(self) -> None:
        host = self._road.host.views
        try:
            self._road.arrive()
            exchange = self._send(host)
            self._sums = exchange.wait()
            if self._sums.weight > 0:
                for view, wide in zip(host, exchange.averages(), strict=True):
                    view.copy_(wide)
        except BaseException as failure:
            self._failure = failure
