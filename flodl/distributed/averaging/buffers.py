"""Buffers of a model on many ranks: running means and counters become the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from flodl.distributed.group import Group


def average_buffers(buffers: Sequence[Tensor], group: Group, weight: float) -> None:
    """Average floating buffers and take the maximum of the others, in place; on all ranks.

    Args:
        buffers: The same ones, in the same order, on all ranks.
        group: The ranks.
        weight: Of this rank, as a part of 1; with 0 its floating values do not count.
    """
    floating = [buffer for buffer in buffers if buffer.is_floating_point()]
    if floating:
        parts = [buffer.detach().reshape(-1).double() * weight for buffer in floating]
        flat = torch.cat(parts)
        if weight == 0:
            flat.zero_()  # 0 times nan is nan
        group.all_reduce_(flat)
        _write_back(floating, flat)
    whole = [b for b in buffers if not b.is_floating_point() and not b.is_complex()]
    if whole:
        flat = torch.cat([buffer.detach().reshape(-1).long() for buffer in whole])
        group.all_reduce_(flat, maximum=True)
        _write_back(whole, flat)


def _write_back(buffers: Sequence[Tensor], flat: Tensor) -> None:
    with torch.no_grad():
        parts = torch.split(flat, [buffer.numel() for buffer in buffers])
        for buffer, part in zip(buffers, parts, strict=True):
            buffer.copy_(part.view(buffer.shape))


@final
class ChangingBuffers:
    """Knows which buffers were written to: tables and masks stay, and need no exchange.

    Args:
        model: Its buffers.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
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

    def average(self, flags: Sequence[float], group: Group, weight: float) -> None:
        """Average those that have changed on any rank.

        Args:
            flags: Sums of :meth:`flags` over the ranks.
            group: The ranks.
            weight: Of this rank, as a part of 1.
        """
        buffers = zip(flags, self._model.buffers(), strict=True)
        average_buffers([buffer for flag, buffer in buffers if flag], group, weight)
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
