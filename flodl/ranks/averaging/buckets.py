"""The memory of an exchange: flat buffers, and rows that all ranks of one host map.

- A bucket holds many tensors in a row, so that one exchange carries all of them. It is reused:
  allocating new memory costs more than the exchange of a small model.
- Ranks add shared rows without sending them. Their memory belongs to no file. It is freed when the
  last rank that maps it ends, also after a kill.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from flodl.ranks.group import Pending

if TYPE_CHECKING:
    from flodl.ranks.group import Group


@final
@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one tensor in a bucket.

    Attributes:
        shape: Shape of the tensor.
        dtype: The dtype of the sum; int64 values take the maximum instead.
        checked: Whether a value that is not finite excludes the whole rank.
        rounds: Whether the values may be rounded when they are sent.
    """

    shape: torch.Size
    dtype: torch.dtype
    checked: bool = False
    rounds: bool = False

    @property
    def widened(self) -> Slot:
        """The same slot with sums in float64."""
        if self.dtype == torch.int64:
            return self
        return replace(self, dtype=torch.float64)


SUMMED = Slot(torch.Size(()), torch.float64)
"""A slot without a tensor, for an exchange that has no other slot that is summed."""


def as_real(tensor: Tensor) -> Tensor:
    """Return the values without autograd history; complex ones as pairs, in the same memory."""
    values = tensor.detach()
    return torch.view_as_real(values) if values.is_complex() else values


def summed_as(tensor: Tensor, *, exact: bool = False) -> torch.dtype:
    """Return the dtype in which a real tensor is averaged.

    Args:
        tensor: A real tensor; half types are summed in float32, integers are compared in int64.
        exact: Whether equal values must come back unchanged; ``Σ n·x / Σn`` guarantees this only in
            float64.
    """
    if not tensor.is_floating_point():
        return torch.int64
    return torch.float64 if exact or tensor.dtype == torch.float64 else torch.float32


@final
class Bucket:
    """Tensors of one dtype in a row, and a few numbers at the end.

    Attributes:
        flat: The whole buffer.
        values: The part with the tensors.
        checked: The first part of ``values``, which must be finite.
        trailer: The numbers after ``values``.
        views: One view per tensor, in its shape.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        device: torch.device,
        *,
        trailing: int = 0,
        pinned: bool = False,
    ) -> None:
        self._slots, self._trailing = slots, trailing
        length, dtype = sum(slot.shape.numel() for slot in slots) + trailing, slots[0].dtype
        self.move_to(torch.zeros(length, dtype=dtype, device=device, pin_memory=pinned))

    def move_to(self, flat: Tensor) -> None:
        """Use another buffer of the same length and dtype; the values are not copied."""
        sizes = [slot.shape.numel() for slot in self._slots]
        total = sum(sizes)
        self.flat = flat
        self.values, self.trailer = flat[:total], flat[total:]
        self.checked = flat[: sum(slot.shape.numel() for slot in self._slots if slot.checked)]
        parts = torch.split(self.values, sizes)
        self.views = [part.view(slot.shape) for part, slot in zip(parts, self._slots, strict=True)]

    @property
    def takes_maximum(self) -> bool:
        """Whether the ranks take the maximum instead of the sum."""
        return self.flat.dtype == torch.int64

    def fill(self, tensors: Sequence[Tensor | None], scale: float) -> None:
        """Copy the tensors, each value times ``scale``; values for a maximum are not scaled."""
        if scale == 0.0 and not self.takes_maximum:
            # Not by multiplying: 0·NaN is NaN.
            self.values.zero_()
            return
        present = [(v, t) for v, t in zip(self.views, tensors, strict=True) if t is not None]
        for view, tensor in zip(self.views, tensors, strict=True):
            if tensor is None:
                view.zero_()
        if self.flat.device.type == "cpu":
            self._fill_on_host(present, scale)
        elif present:
            torch._foreach_copy_([view for view, _ in present], [t for _, t in present])
            if not self.takes_maximum:
                self.values.mul_(scale)

    def _fill_on_host(self, present: Sequence[tuple[Tensor, Tensor]], scale: float) -> None:
        for view, tensor in present:
            if self.takes_maximum:
                view.copy_(tensor)
            elif view.dtype == tensor.dtype:
                torch.mul(tensor, scale, out=view)
            else:
                # A product of two dtypes is many times slower than a copy, then a product.
                view.copy_(tensor).mul_(scale)


@final
class Buckets:
    """One bucket per dtype for a list of slots.

    Args:
        slots: The same on all ranks, in the same order.
        device: Device of the buffers.
        trailing: Count of numbers at the end of the first bucket.
        pinned: Whether to pin the host memory, for copies from and to a GPU.

    Attributes:
        all: The buckets; the bucket for maxima is the last.
        views: One view per slot.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        device: torch.device,
        *,
        trailing: int = 0,
        pinned: bool = False,
    ) -> None:
        # Checked slots come first, so that one check of a bucket's first part covers them.
        order = sorted(range(len(slots)), key=lambda index: not slots[index].checked)
        dtypes = dict.fromkeys(slots[index].dtype for index in order)
        self._indices = [
            [index for index in order if slots[index].dtype == dtype]
            for dtype in sorted(dtypes, key=lambda dtype: dtype == torch.int64)
        ]
        self.all = [
            Bucket(
                [slots[index] for index in indices],
                device,
                trailing=0 if number else trailing,
                pinned=pinned,
            )
            for number, indices in enumerate(self._indices)
        ]
        self._order_views()

    def move_to(self, flats: Sequence[Tensor]) -> None:
        """Use other buffers, one per bucket; see :meth:`Bucket.move_to`."""
        for bucket, flat in zip(self.all, flats, strict=True):
            bucket.move_to(flat)
        self._order_views()

    def _order_views(self) -> None:
        by_index: dict[int, Tensor] = {}
        for indices, bucket in zip(self._indices, self.all, strict=True):
            by_index.update(zip(indices, bucket.views, strict=True))
        self.views = [by_index[index] for index in range(len(by_index))]

    @property
    def sums(self) -> list[Bucket]:
        """The buckets that are summed."""
        return [bucket for bucket in self.all if not bucket.takes_maximum]

    @property
    def trailer(self) -> Tensor:
        """The extra numbers that are exchanged with the tensors."""
        return self.all[0].trailer

    def fill(self, tensors: Sequence[Tensor | None], scale: float = 1.0) -> None:
        """Copy tensors to their slots, times ``scale``; None means zeros."""
        for indices, bucket in zip(self._indices, self.all, strict=True):
            bucket.fill([tensors[index] for index in indices], scale)

    def copy_(self, other: Buckets) -> None:
        """Copy the values of buckets for the same slots; on a GPU in the order of its stream."""
        for mine, theirs in zip(self.all, other.all, strict=True):
            mine.values.copy_(theirs.values, non_blocking=True)


_TOKEN = 32
"""Bytes at the end that prove that two ranks map the same memory."""
_ALIGNED = 64
"""Elements: ranks write to different cache lines."""


@final
class SharedRows:
    """One row of numbers per rank, readable and writable by all ranks.

    Args:
        memory: The mapped memory.
        group: The ranks.
        length: Elements of a row.
        dtype: Their dtype.

    Attributes:
        rows: The row of each rank, ``[length]``. Write only to your own, except in :meth:`add`.
    """

    def __init__(self, memory: mmap.mmap, group: Group, length: int, dtype: torch.dtype) -> None:
        count = group.world_size * length
        everything = torch.frombuffer(memory, dtype=dtype, count=count)
        self.rows: list[Tensor] = list(everything.view(group.world_size, length))
        self._group = group
        bounds = [length * rank // group.world_size for rank in range(group.world_size + 1)]
        bounds = [min(length, -(-bound // _ALIGNED) * _ALIGNED) for bound in bounds]
        self._own = slice(bounds[group.rank], bounds[group.rank + 1])

    @property
    def own(self) -> Tensor:
        """The row of this rank."""
        return self.rows[self._group.rank]

    def add(self, *, maximum: bool) -> None:
        """Add this rank's part of all rows, and write the sum to this part of every row.

        Call it after every rank has filled its row. A row is complete when all ranks have done it.

        Args:
            maximum: Take the maximum instead of the sum.
        """
        first, *others = (row[self._own] for row in self.rows)
        for other in others:
            if maximum:
                torch.maximum(first, other, out=first)
            else:
                first.add_(other)
        for other in others:
            other.copy_(first)


@final
class SharedSum(Pending):
    """The sum of the rows of all ranks, in progress.

    Args:
        group: The ranks.
        shared: Rows, filled by this rank.
        maximum: For each of them, whether to take the maximum instead.
    """

    def __init__(self, group: Group, shared: Sequence[SharedRows], maximum: Sequence[bool]) -> None:
        self._group, self._shared, self._maximum = group, shared, maximum
        self._filled = group.gather_later([0.0], prompt=True)

    def done(self) -> bool:
        """Return False: every rank has to call :meth:`wait`."""
        return False

    def wait(self) -> Any:
        """Wait for the other ranks twice: until they have filled, and until they have added."""
        self._filled.wait()
        for rows, maximum in zip(self._shared, self._maximum, strict=True):
            rows.add(maximum=maximum)
        return self._group.gather([0.0], prompt=True)


def share_rows(
    group: Group, lengths: Sequence[int], dtypes: Sequence[torch.dtype]
) -> list[SharedRows] | None:
    """Map memory for rows of these lengths; collective.

    Args:
        group: The ranks.
        lengths: Elements of each kind of row; equal on all ranks.
        dtypes: The dtype of each kind.

    Returns:
        Rows that hold zeros. None on all ranks if not every rank can map the same memory, as on
        several hosts.
    """
    sizes = [
        group.world_size * length * dtype.itemsize
        for length, dtype in zip(lengths, dtypes, strict=True)
    ]
    found: list[SharedRows] = []
    for size, length, dtype in zip(sizes, lengths, dtypes, strict=True):
        memory = _mapped(group, size)
        if memory is None:
            return None
        found.append(SharedRows(memory, group, length, dtype))
    return found


def _mapped(group: Group, size: int) -> mmap.mmap | None:
    """Memory of this many bytes that all ranks map, or None on all ranks; collective."""
    file, place = -1, None
    token = secrets.token_bytes(_TOKEN)
    if group.leads:
        file = _anonymous_file(size + _TOKEN, token)
        place = (f"/proc/{os.getpid()}/fd/{file}", token) if file >= 0 else None
    place = group.broadcast_object(place)
    memory = _map(place[0], size + _TOKEN, place[1]) if place is not None else None
    everywhere = all(group.gather_objects(memory is not None))
    if file >= 0:
        os.close(file)
    return memory if everywhere else None


def _anonymous_file(size: int, token: bytes) -> int:
    """Return the number of an open file in memory that ends with a token; -1 if there is none."""
    if not hasattr(os, "memfd_create"):
        return -1
    file = os.memfd_create("flodl-ranks", os.MFD_CLOEXEC)
    try:
        # Reserved now: memory that cannot be had later would kill the process.
        os.posix_fallocate(file, 0, size)
        os.pwrite(file, token, size - len(token))
    except OSError:
        os.close(file)
        return -1
    return file


def _map(path: str, size: int, token: bytes) -> mmap.mmap | None:
    """Map a file of another process; None if it is not the one with this token."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # another host or container, or another user
        return None
    try:
        if os.fstat(file).st_size != size or os.pread(file, len(token), size - len(token)) != token:
            return None
        return mmap.mmap(file, size)
    except OSError:
        return None
    finally:
        os.close(file)
