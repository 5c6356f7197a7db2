"""Exchange tensors in fewer bytes: rounded to bfloat16 or int8, in fragments, each in two halves.

Every rank averages one part of each fragment. In the first half it gets this part from all ranks;
in the second half it sends the average to all of them. All decode the same bytes, so they have the
same averages to the bit. A rank sends ``2 · (n - 1) / n`` bytes per value in int8, as a ring of
``n`` ranks sends values.

With int8, the error of both roundings is kept where it was made, and added to the next exchange.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from flodl.ranks.averaging.backends import DirectWire, Exchange, Sums, Wire, wire_for
from flodl.ranks.averaging.buckets import SUMMED, Slot
from flodl.ranks.settings import Backend, ExchangeFormat

if TYPE_CHECKING:
    from flodl.ranks.group import Group, Pending

FRAGMENT = 2**22
"""Values of a fragment. While one travels, the next one is encoded."""

_BLOCK = 256
"""Values with the same scale in int8: 1.6 % more bytes."""

_ALIGNED = 2 * _BLOCK
"""The values of a row are a multiple of this, so that every row begins at a multiple of 8 bytes."""

_HEADER = 8
"""Bytes at the beginning of a row, with the weight of the rank as float64."""

_STEPS = 127.0

_OWN, _AVERAGE = "own", "average"
"""Names of the errors that are kept."""


class Codec(ABC):
    """Writes float32 values as bytes."""

    @abstractmethod
    def size(self, count: int) -> int:
        """Return the bytes of so many values."""

    @abstractmethod
    def write(self, values: Tensor, out: Tensor) -> None:
        """Write rows of values to rows of bytes."""

    @abstractmethod
    def read(self, rows: Tensor) -> Tensor:
        """Return the values of rows of bytes."""


@final
class Bf16(Codec):
    """Rounds to the nearest bfloat16."""

    def size(self, count: int) -> int:
        """Return the bytes of so many values."""
        return 2 * count

    def write(self, values: Tensor, out: Tensor) -> None:
        """Write rows of values to rows of bytes."""
        out.view(torch.bfloat16).copy_(values)

    def read(self, rows: Tensor) -> Tensor:
        """Return the values of rows of bytes."""
        return rows.view(torch.bfloat16).float()


@final
class Int8(Codec):
    """Rounds to multiples of the largest value of a block / 127; scales stand before the values.

    A block with a value that is not finite gets such a scale, so all its values become NaN.
    """

    def size(self, count: int) -> int:
        """Return the bytes of so many values."""
        return count + count // _BLOCK * 4

    def write(self, values: Tensor, out: Tensor) -> None:
        """Write rows of values to rows of bytes."""
        blocks = values.view(len(values), -1, _BLOCK)
        scales = blocks.abs().amax(2, keepdim=True).div_(_STEPS)
        steps = blocks / torch.where(scales > 0, scales, 1.0)
        numbers = steps.round_().nan_to_num_(0.0).clamp_(-_STEPS, _STEPS).to(torch.int8)
        split = scales.numel() // len(values) * 4
        out[:, :split].view(torch.float32).copy_(scales.squeeze(2))
        out[:, split:].view(torch.int8).copy_(numbers.flatten(1))

    def read(self, rows: Tensor) -> Tensor:
        """Return the values of rows of bytes."""
        split = rows.shape[1] // (_BLOCK + 4) * 4
        scales = rows[:, :split].view(torch.float32)
        numbers = rows[:, split:].view(torch.int8).view(len(rows), -1, _BLOCK)
        values: Tensor = numbers * scales.unsqueeze(2)
        return values.flatten(1)


def wire_in(format: ExchangeFormat, group: Group, backend: Backend) -> Wire:
    """Return the wire of a backend that sends values in a format."""
    if format is ExchangeFormat.FLOAT32:
        return wire_for(group, backend)
    return RoundedWire(group, backend, format)


@final
class RoundedWire(Wire):
    """Sends the slots that may be rounded in a small format, and the others as they are.

    Args:
        group: The ranks.
        backend: How values are exchanged; with ``cpu`` they are rounded in host memory.
        format: The format.
    """

    def __init__(self, group: Group, backend: Backend, format: ExchangeFormat) -> None:
        through_host = backend is Backend.CPU
        self._device = torch.device("cpu") if through_host else group.device
        self._group = group
        self._exact = DirectWire(group, self._device, wide=through_host)
        self._codec = Int8() if format is ExchangeFormat.INT8 else Bf16()
        self._keeps_errors = format is ExchangeFormat.INT8
        self._loaded: Mapping[str, Tensor] = {}
        self._fragments: _Fragments | None = None

    def send(
        self,
        slots: Sequence[Slot],
        tensors: Sequence[Tensor | None],
        weight: float,
        extra: Sequence[float] = (),
        *,
        waits: bool = False,
    ) -> Exchange:
        """Round the tensors and start to average them."""
        here = [None if tensor is None else tensor.to(self._device) for tensor in tensors]
        rounded = [at for at, slot in enumerate(slots) if slot.rounds]
        if self._group.world_size == 1 or not rounded:
            return self._exact.send(slots, here, weight, extra, waits=waits)
        fragments = self._room_for([slots[at].shape for at in rounded])
        fragments.fill([here[at] for at in rounded])
        # On a GPU the host waits for the values here. Without rounding it does not.
        checked = any(slots[at].checked for at in rounded)
        broken = checked and weight > 0 and not bool(fragments.values.sum().isfinite())
        if broken:
            weight = 0.0
        exact = [at for at, slot in enumerate(slots) if not slot.rounds]
        sent = self._exact.send(
            [*(slots[at] for at in exact), SUMMED],
            [*(here[at] for at in exact), None],
            weight,
            [*extra, float(broken)],
            waits=waits,
        )
        fragments.begin(weight)
        order = [*rounded, *exact]
        return _RoundedExchange(fragments, sent, order, self._group.device, broken=broken)

    def state(self) -> dict[str, Tensor]:
        """Return the errors that the next exchange adds."""
        errors = self._loaded if self._fragments is None else self._fragments.errors
        return {name: error.cpu() for name, error in errors.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue with the result of :meth:`state`, or without errors."""
        self._loaded, self._fragments = state, None

    def _room_for(self, shapes: list[torch.Size]) -> _Fragments:
        ranks = self._group.world_size
        if self._fragments is None or self._fragments.layout != (shapes, ranks):
            self._fragments = _Fragments(shapes, self._group, self._device, self._codec)
            if self._keeps_errors:
                self._fragments.keep_errors(self._loaded)
            self._loaded = {}
        return self._fragments


@final
class _Fragments:
    """The buffers for one list of shapes: fragments of one row per rank.

    Args:
        shapes: Shapes of the tensors.
        group: The ranks.
        device: Device of the buffers.
        codec: Writes the rows.

    Attributes:
        layout: The shapes and the number of ranks.
        errors: What rounding has taken from the last values and averages; empty if it is not kept.
        values: The values of this rank, then the averages: fragment, rank, value.
        views: One view per tensor.
    """

    def __init__(
        self,
        shapes: list[torch.Size],
        group: Group,
        device: torch.device,
        codec: Codec,
    ) -> None:
        ranks = group.world_size
        self.layout = shapes, ranks
        self._group, self._codec = group, codec
        self.errors: dict[str, Tensor] = {}
        sizes = [shape.numel() for shape in shapes]
        count = -(-sum(sizes) // FRAGMENT)
        row = -(-sum(sizes) // (count * ranks * _ALIGNED)) * _ALIGNED
        self.values = torch.zeros(count, ranks, row, device=device)
        parts = torch.split(self.values.view(-1)[: sum(sizes)], sizes)
        self.views = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        self._averages = torch.zeros(count, row, device=device)
        length = _HEADER + codec.size(row)
        self._given, self._taken, self._told = (
            torch.empty(count, ranks, length, dtype=torch.uint8, device=device) for _ in range(3)
        )
        self._weight = 0.0
        self._first: list[Pending] = []
        self._second: list[Pending] = []

    def keep_errors(self, found: Mapping[str, Tensor]) -> None:
        """Keep errors from now on, and begin with some if they are for the same layout."""
        for name, like in ((_OWN, self.values), (_AVERAGE, self._averages)):
            error = found.get(name, like)
            fits = name in found and error.shape == like.shape
            self.errors[name] = error.to(like.device) if fits else torch.zeros_like(like)

    def fill(self, tensors: Sequence[Tensor | None]) -> None:
        """Take the values of this rank; None counts as zeros."""
        self.values.zero_()
        present = [(v, t) for v, t in zip(self.views, tensors, strict=True) if t is not None]
        if present:
            torch._foreach_copy_([view for view, _ in present], [t for _, t in present])
        if self.errors:
            self.values.add_(self.errors[_OWN])

    def begin(self, weight: float) -> None:
        """Start the first half of each fragment; while one travels, the next one is rounded."""
        self._weight, self._first, self._second = weight, [], []
        if not weight:
            self.values.zero_()
        for values, given, taken in zip(self.values, self._given, self._taken, strict=True):
            self._write(values, given, weight)
            self._first.append(self._group.swap_rows_later(given, taken))

    def advance(self, *, waits: bool) -> bool:
        """Start the second half of the fragments whose first half is done; return if all are done.

        Args:
            waits: Whether to wait for all of them.
        """
        for number, first in enumerate(self._first):
            if number < len(self._second):
                continue
            # In this order on every rank.
            if not waits and not first.done():
                return False
            first.wait()
            self._second.append(self._share(number))
        if not waits:
            return all(second.done() for second in self._second)
        for second in self._second:
            second.wait()
        return True

    def _share(self, number: int) -> Pending:
        """Average the rows of all ranks, and start to send the average to them."""
        taken, told, average = self._taken[number], self._told[number], self._averages[number]
        weights = taken[:, :_HEADER].view(torch.float64).flatten()
        shares = (weights / weights.sum()).float()
        average.zero_()
        for row, share in zip(self._read(taken), shares, strict=True):
            average.addcmul_(row, share)
        if self.errors:
            average.add_(self.errors[_AVERAGE][number])
        self._write(average.expand(1, -1), told[:1], 0.0)
        told[1:] = told[0]
        return self._group.swap_rows_later(told, taken)

    def finish(self) -> list[Tensor]:
        """Keep the errors of an exchange that is done, and return the averages."""
        for number, taken in enumerate(self._taken):
            if self.errors:
                if self._weight:  # else nothing was sent, and the error is still to be added
                    self._keep(_OWN, number, self.values[number], self._given[number])
                self._keep(_AVERAGE, number, self._averages[number], self._told[number, :1])
            self.values[number].copy_(self._read(taken))
        return self.views

    def _keep(self, name: str, number: int, values: Tensor, sent: Tensor) -> None:
        error = torch.sub(values, self._read(sent).view_as(values), out=self.errors[name][number])
        # Gradients that overflowed say nothing about later ones.
        error.nan_to_num_(0.0, 0.0, 0.0)

    def _write(self, values: Tensor, rows: Tensor, weight: float) -> None:
        rows[:, :_HEADER].view(torch.float64).fill_(weight)
        self._codec.write(values, rows[:, _HEADER:])

    def _read(self, rows: Tensor) -> Tensor:
        return self._codec.read(rows[:, _HEADER:])


@final
class _RoundedExchange(Exchange):
    """An exchange of fragments in progress, and of what is not rounded."""

    def __init__(
        self,
        fragments: _Fragments,
        exact: Exchange,
        order: list[int],
        device: torch.device,
        *,
        broken: bool,
    ) -> None:
        self._fragments, self._exact, self._order = fragments, exact, order
        self._device, self._broken = device, broken

    def done(self) -> bool:
        return self._fragments.advance(waits=False) and self._exact.done()

    def wait(self) -> Sums:
        self._fragments.advance(waits=True)
        sums = self._exact.wait()
        *extra, broken = sums.extra
        finite = sums.finite and not self._broken
        return Sums(sums.weight, sums.broken + round(broken), finite, extra)

    def averages(self) -> list[Tensor]:
        found = [*self._fragments.finish(), *self._exact.averages()[:-1]]
        by_place = dict(zip(self._order, found, strict=True))
        return [by_place[at].to(self._device) for at in sorted(by_place)]
