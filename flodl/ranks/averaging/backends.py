"""Exchange tensors between the ranks: from device to device, or through host memory.

A wire takes the tensors of this rank and a weight. It returns the weighted average of each tensor
over the ranks. It owns its buffers and reuses them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from flodl.openmp import use_one_thread
from flodl.ranks.averaging.buckets import Buckets, SharedRows, SharedSum, Slot, share_rows
from flodl.ranks.group import Pending
from flodl.ranks.settings import Backend

if TYPE_CHECKING:
    from flodl.ranks.group import Group


@final
@dataclass(frozen=True, slots=True)
class Sums:
    """Numbers that are exchanged along with the averages.

    Attributes:
        weight: Sum of the weights of all ranks.
        broken: Number of ranks that were left out because a value was not finite.
        finite: Whether the values of this rank were finite.
        extra: Sums of the extra numbers.
    """

    weight: float
    broken: int
    finite: bool
    extra: list[float]


class Exchange(Pending):
    """An exchange in progress; it uses the wire's buffers until the averages are read."""

    @abstractmethod
    def wait(self) -> Sums:
        """Wait for the sums."""

    @abstractmethod
    def averages(self) -> list[Tensor]:
        """Return the average for each slot.

        Call it once, after :meth:`wait` returned a weight above 0. The averages are views that the
        next exchange overwrites.
        """


class Wire(ABC):
    """A way to exchange tensors between the ranks; one exchange at a time."""

    @abstractmethod
    def send(
        self,
        slots: Sequence[Slot],
        tensors: Sequence[Tensor | None],
        weight: float,
        extra: Sequence[float] = (),
        *,
        waits: bool = False,
    ) -> Exchange:
        """Copy the tensors and start to average them.

        Args:
            slots: Equal on all ranks; at least one of them is summed.
            tensors: One real tensor per slot; None counts as zeros.
            weight: Weight of this rank; 0 sends zeros.
            extra: Numbers to sum in the same exchange, in the precision of the first bucket.
            waits: Whether every rank waits for the result at once. Ranks of one host then add the
                values in memory that all of them map, without sending them.
        """

    def state(self) -> dict[str, Tensor]:
        """Return what the next exchange needs of the last one, for a checkpoint."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027 - most need nothing
        """Continue with the result of :meth:`state`; with an empty one after going back."""


def wire_for(group: Group, backend: Backend) -> Wire:
    """Return the wire of a backend."""
    if backend is Backend.NCCL:
        return DirectWire(group, group.device)
    return HostWire(group)


_WORTH_SHARING = 2**20
"""Bytes: sending fewer of them takes no longer than two meetings of the ranks."""

_WEIGHT, _BROKEN, _EXTRA = range(3)
"""Positions in the trailer."""


@final
class DirectWire(Wire):
    """Sums directly on one device.

    Args:
        group: The ranks.
        device: Device of the buffers.
        wide: Whether to sum everything in float64.
    """

    def __init__(self, group: Group, device: torch.device, *, wide: bool = False) -> None:
        self._group, self._device, self._wide = group, device, wide
        self._laid_out: tuple[tuple[Slot, ...], int] | None = None
        self._buckets: Buckets
        self._shared: list[SharedRows] | None = None

    def send(
        self,
        slots: Sequence[Slot],
        tensors: Sequence[Tensor | None],
        weight: float,
        extra: Sequence[float] = (),
        *,
        waits: bool = False,
    ) -> _DirectExchange:
        """Copy the tensors and start to average them."""
        buckets = self._room_for(tuple(slots), _EXTRA + len(extra), waits=waits)
        # A single rank keeps its values; n·x/n would differ in the last bit.
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
        pending: list[Pending]
        if waits and self._shared is not None:
            maxima = [bucket.takes_maximum for bucket in buckets.all]
            pending = [SharedSum(self._group, self._shared, maxima)]
        else:
            pending = [
                self._group.all_reduce_later(bucket.flat, maximum=bucket.takes_maximum)
                for bucket in buckets.all
            ]
        return _DirectExchange(buckets, pending, healthy, alone=alone)

    def _room_for(self, slots: tuple[Slot, ...], trailing: int, *, waits: bool) -> Buckets:
        if self._laid_out != (slots, trailing):
            room = [slot.widened for slot in slots] if self._wide else slots
            self._buckets = Buckets(room, self._device, trailing=trailing)
            self._laid_out = (slots, trailing)
            self._shared = self._share(self._buckets) if waits else None
        return self._buckets

    def _share(self, buckets: Buckets) -> list[SharedRows] | None:
        """Move large buckets in host memory to memory that all ranks map; collective."""
        flats = [bucket.flat for bucket in buckets.all]
        alone = self._group.world_size == 1 or self._device.type != "cpu"
        if alone or not self._group.is_fixed or sum(flat.nbytes for flat in flats) < _WORTH_SHARING:
            return None
        lengths, dtypes = [flat.numel() for flat in flats], [flat.dtype for flat in flats]
        shared = share_rows(self._group, lengths, dtypes)
        if shared is not None:
            buckets.move_to([rows.own for rows in shared])
        return shared


def _finite(buckets: Buckets) -> Tensor | None:
    """Return on the device whether all checked values are finite; None if none is checked."""
    # A sum is finite only if all its values are, and it takes a single pass.
    found = [bucket.checked.sum().isfinite() for bucket in buckets.sums if len(bucket.checked)]
    return torch.stack(found).all() if found else None


def _leave_out_if_broken(buckets: Buckets, trailer: Tensor, healthy: Tensor) -> None:
    """Send zeros with weight 0 if a value is not finite."""
    if not healthy:
        trailer[_WEIGHT], trailer[_BROKEN] = 0.0, 1.0
        for bucket in buckets.sums:
            bucket.values.zero_()
    buckets.trailer.copy_(trailer)


def _leave_out_unasked(buckets: Buckets, trailer: Tensor, healthy: Tensor) -> None:
    """Do the same on a GPU without making the host wait: the GPU decides."""
    for bucket in buckets.sums:
        torch.where(healthy, bucket.values, bucket.values.new_zeros(()), out=bucket.values)
    target = buckets.trailer
    target.copy_(trailer)
    target[_WEIGHT].mul_(healthy)
    target[_BROKEN].copy_(~healthy)


@final
class _DirectExchange(Exchange):
    """A sum of buckets in progress; the averages are in ``result``, which may have other dtypes."""

    def __init__(
        self, buckets: Buckets, pending: Sequence[Pending], healthy: Tensor | None, *, alone: bool
    ) -> None:
        self._buckets, self._pending, self._healthy = buckets, pending, healthy
        self.result, self._alone = buckets, alone
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
        if self.result is not self._buckets:
            for view, wide in zip(self.result.views, self._buckets.views, strict=True):
                view.copy_(wide)
        return self.result.views


@final
class HostWire(Wire):
    """Sums in host memory, in float64.

    Args:
        group: The ranks; the averages are returned on the group's device.
    """

    def __init__(self, group: Group) -> None:
        self._device = group.device
        self._inner = DirectWire(group, torch.device("cpu"), wide=True)
        self._slots: tuple[Slot, ...] = ()
        self._stage: Buckets
        self._pinned: PinnedCopy | None = None

    def send(
        self,
        slots: Sequence[Slot],
        tensors: Sequence[Tensor | None],
        weight: float,
        extra: Sequence[float] = (),
        *,
        waits: bool = False,
    ) -> Exchange:
        """Copy the tensors and start to average them."""
        if self._slots != tuple(slots):
            self._slots = tuple(slots)
            self._stage = Buckets(slots, self._device)
            on_gpu = self._device.type == "cuda"
            self._pinned = PinnedCopy(slots, self._device) if on_gpu else None
        if self._pinned is None:
            sent = self._inner.send(slots, tensors, weight, extra, waits=waits)
            sent.result = self._stage
            return sent
        self._stage.fill(tensors)
        self._pinned.start(self._stage)
        return _FarExchange(
            self._stage, self._pinned, lambda host: self._inner.send(slots, host, weight, extra)
        )


@final
class _FarExchange(Exchange):
    """A sum in progress of tensors from a GPU: a thread waits for the copy and the other ranks."""

    def __init__(
        self, stage: Buckets, pinned: PinnedCopy, send: Callable[[list[Tensor]], Exchange]
    ) -> None:
        self._stage, self._pinned, self._send = stage, pinned, send
        self._sums: Sums | None = None
        self._failure: BaseException | None = None
        # A daemon, so that a program can end although other ranks are gone.
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
        self._stage.copy_(self._pinned.host)
        return self._stage.views

    def _carry(self) -> None:
        use_one_thread()  # the other cores belong to the training
        host = self._pinned.host.views
        try:
            self._pinned.wait()
            exchange = self._send(host)
            self._sums = exchange.wait()
            if self._sums.weight > 0:
                for view, wide in zip(host, exchange.averages(), strict=True):
                    view.copy_(wide)
        except BaseException as failure:
            self._failure = failure


@final
class PinnedCopy:
    """Pinned host memory for a copy of the buckets on a GPU.

    Copies run on a side stream, so that training continues meanwhile.

    Args:
        slots: Slots of the buckets.
        device: Device of the buckets.

    Attributes:
        host: The copy in host memory; valid after :meth:`wait`.
    """

    def __init__(self, slots: Sequence[Slot], device: torch.device) -> None:
        self.host = Buckets(slots, torch.device("cpu"), pinned=True)
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def start(self, stage: Buckets) -> None:
        """Start to copy to the host; do not change ``stage`` until :meth:`wait`."""
        # The training stream fills the buckets, and before that it reads this pinned memory.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self.host.copy_(stage)
            self._copied.record()

    def wait(self) -> None:
        """Wait for the copy; before this, the host would read old values."""
        self._copied.synchronize()
