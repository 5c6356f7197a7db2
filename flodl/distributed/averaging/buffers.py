"""Buffers of a model on many ranks: the one rule by which they become the same everywhere.

Floating buffers are averaged by samples, as parameters are; complex ones are pairs of floating
values. Integers and booleans take the maximum. Every policy, backend and loop comes through here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

from flodl.distributed.averaging.buckets import Slot, as_real, summed_as
from flodl.distributed.averaging.wire import Wire, wire_for

if TYPE_CHECKING:
    from flodl.distributed.config import Backend
    from flodl.distributed.group import Group

_WEIGHT = Slot(torch.Size(()), torch.float64)
"""Room that is always summed: integers alone could not carry the weight of a rank."""


def buffers_of(model: nn.Module) -> list[Tensor]:
    """Return the live buffers as real tensors, each once; integer parameters are among them."""
    integers = (
        parameter.detach()
        for parameter in model.parameters()
        if not parameter.is_floating_point() and not parameter.is_complex()
    )
    return [*(as_real(buffer) for buffer in model.buffers()), *integers]


def slots_of(buffers: Sequence[Tensor]) -> list[Slot]:
    """Return the room that buffers need in an exchange; equal values come back as they were."""
    return [Slot(buffer.shape, summed_as(buffer, exact=True)) for buffer in buffers]


@torch.no_grad()
def take_averages(buffers: Sequence[Tensor], averages: Sequence[Tensor]) -> None:
    """Overwrite buffers by what was averaged for them; one that counts never goes back.

    Args:
        buffers: Of :func:`buffers_of`.
        averages: One per buffer, of its shape.
    """
    for buffer, average in zip(buffers, averages, strict=True):
        if buffer.is_floating_point():
            buffer.copy_(average)
        else:
            # Counted on since a snapshot, it may be ahead of all ranks.
            buffer.copy_(torch.maximum(buffer, average.to(buffer.dtype)))


def average_buffers(buffers: Sequence[Tensor], wire: Wire, samples: float) -> float:
    """Average buffers in an exchange of their own, in place; on all ranks.

    Args:
        buffers: The same ones, in the same order, on all ranks.
        wire: To the other ranks.
        samples: Weight of this rank; with 0 its floating values do not count.

    Returns:
        The weight of all ranks together; at 0 all buffers stay as they are.
    """
    exchange = wire.send([_WEIGHT, *slots_of(buffers)], [None, *buffers], samples)
    weight = exchange.wait().weight
    if weight > 0:
        take_averages(buffers, exchange.averages()[1:])
    return weight


@final
class ChangingBuffers:
    """Averages the buffers that steps write to: tables and masks stay, and need no exchange.

    Args:
        model: Its buffers.
        group: The ranks.
        backend: Which way the values travel.
    """

    def __init__(self, model: nn.Module, group: Group, backend: Backend) -> None:
        self._model, self._alone = model, group.world_size == 1
        self._wire = wire_for(group, backend)
        self._seen: list[tuple[int, int]] = []
        self._look()

    def flags(self) -> list[float]:
        """Return 1 or 0 per buffer: whether it may have changed since the last call.

        A module of which one buffer was written to may have changed all: the statistics of a
        normalisation change without a trace that autograd would keep.
        """
        before = self._seen
        owners = self._look()
        if len(before) != len(self._seen):
            return [1.0] * len(self._seen)
        pairs = zip(owners, before, self._seen, strict=True)
        written = {owner for owner, old, new in pairs if old != new}
        return [float(owner in written) for owner in owners]

    def average(self, flags: Sequence[float], samples: float) -> None:
        """Average those that have changed on any rank; on all ranks.

        Args:
            flags: Sums of :meth:`flags` over the ranks.
            samples: Weight of this rank.
        """
        buffers = zip(flags, self._model.buffers(), strict=True)
        changed = [as_real(buffer) for flag, buffer in buffers if flag]
        if changed and not self._alone:
            average_buffers(changed, self._wire, samples)
            self._look()

    def average_all(self, samples: float) -> None:
        """Average all, also those that were changed without a trace; on all ranks.

        Args:
            samples: Weight of this rank.
        """
        buffers = buffers_of(self._model)
        if buffers and not self._alone:
            average_buffers(buffers, self._wire, samples)
            self._look()

    def _look(self) -> list[int]:
        owners = []
        self._seen = []
        seen: set[int] = set()
        for number, module in enumerate(self._model.modules()):
            for buffer in module.buffers(recurse=False):
                if id(buffer) not in seen:
                    seen.add(id(buffer))
                    owners.append(number)
                    self._seen.append((id(buffer), buffer._version))
        return owners


def broadcast_state(model: nn.Module, group: Group) -> None:
    """Overwrite parameters and buffers by those of rank 0; on all ranks."""
    for tensor in (*model.parameters(), *model.buffers()):
        values = tensor.detach().contiguous()
        # As bytes, which every backend can carry.
        group.broadcast_(values.reshape(-1).view(torch.uint8))
        if values.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(values)
