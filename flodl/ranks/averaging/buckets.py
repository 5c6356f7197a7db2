"""Flat buffers that hold many tensors in a row, so that one exchange carries all of them.

They are reused: allocating new memory costs more than the exchange of a small model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor


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
