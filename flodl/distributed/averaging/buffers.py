"""Make the buffers of a model equal on all ranks; all policies, backends and loops use this.

Floating buffers are averaged, weighted by samples, as parameters are. Complex buffers are pairs of
floating values. Integer and boolean buffers take the maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

from flodl.distributed.averaging.backends import Wire, wire_for
from flodl.distributed.averaging.buckets import Slot, as_real, summed_as

if TYPE_CHECKING:
    from flodl.launch.group import Group
    from flodl.launch.settings import Backend

_WEIGHT = Slot(torch.Size(()), torch.float64)
"""A slot that is always summed: integers alone could not carry the weight of a rank."""


def buffers_of(model: nn.Module) -> list[Tensor]:
    """Return the live buffers and the integer parameters as real tensors, each once."""
    integers = (
        parameter.detach()
        for parameter in model.parameters()
        if not parameter.is_floating_point() and not parameter.is_complex()
    )
    return [*(as_real(buffer) for buffer in model.buffers()), *integers]


def slots_of(buffers: Sequence[Tensor]) -> list[Slot]:
    """Return the slots of buffers in an exchange; equal values come back unchanged."""
    return [Slot(buffer.shape, summed_as(buffer, exact=True)) for buffer in buffers]


@torch.no_grad()
def take_averages(buffers: Sequence[Tensor], averages: Sequence[Tensor]) -> None:
    """Overwrite buffers with their averages; counters never decrease.

    Args:
        buffers: The buffers that :func:`buffers_of` returned.
        averages: One per buffer, of its shape.
    """
    for buffer, average in zip(buffers, averages, strict=True):
        if buffer.is_floating_point():
            buffer.copy_(average)
        else:
            # A counter that continued after the snapshot may be ahead of the maximum.
            buffer.copy_(torch.maximum(buffer, average.to(buffer.dtype)))


def average_buffers(buffers: Sequence[Tensor], wire: Wire, samples: float) -> float:
    """Average buffers in place, in a separate exchange; collective.

    Args:
        buffers: The same buffers in the same order on all ranks.
        wire: The wire to the other ranks.
        samples: Weight of this rank; with 0 its floating values do not count.

    Returns:
        The sum of the weights of all ranks; if it is 0, all buffers stay unchanged.
    """
    exchange = wire.send([_WEIGHT, *slots_of(buffers)], [None, *buffers], samples)
    weight = exchange.wait().weight
    if weight > 0:
        take_averages(buffers, exchange.averages()[1:])
    return weight


@final
class ChangingBuffers:
    """Averages the buffers that steps change; constant tables and masks need no exchange.

    Args:
        model: The model with the buffers.
        group: The ranks.
        backend: How values are exchanged.
    """

    def __init__(self, model: nn.Module, group: Group, backend: Backend) -> None:
        self._model, self._alone = model, group.world_size == 1
        self._wire = wire_for(group, backend)
        self._seen: list[tuple[int, int]] = []
        self._look()

    def flags(self) -> list[float]:
        """Return 1 for each buffer that may have changed since the last check, else 0.

        If one buffer of a module was written to, all its buffers count as changed. Some writes,
        such as those to the statistics of a normalization, do not increase a tensor's version.
        """
        before = self._seen
        owners = self._look()
        if len(before) != len(self._seen):
            return [1.0] * len(self._seen)
        pairs = zip(owners, before, self._seen, strict=True)
        written = {owner for owner, old, new in pairs if old != new}
        return [float(owner in written) for owner in owners]

    def average(self, flags: Sequence[float], samples: float) -> None:
        """Average the buffers that have changed on any rank; collective.

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
        """Average all buffers, including those whose changes were not detected; collective.

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
    """Overwrite parameters and buffers with those of rank 0; collective."""
    for tensor in (*model.parameters(), *model.buffers()):
        values = tensor.detach().contiguous()
        # As bytes, which every backend can send.
        group.broadcast_(values.reshape(-1).view(torch.uint8))
        if values.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(values)


def model_facts(model: nn.Module) -> dict[str, object]:
    """Return the shape and type of each parameter and buffer, which all ranks must share."""
    kinds = {"parameter": model.named_parameters(), "buffer": model.named_buffers()}
    return {
        f"{kind} {name}": f"{list(tensor.shape)} {tensor.dtype}"
        for kind, named in kinds.items()
        for name, tensor in named
    }
