"""Parameters that no step changes are equal on all ranks, so they need not travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

_WORD = 8
"""Bytes that are added up at once."""


@final
class FrozenParameters:
    """Knows whether frozen parameters are still the ones that all ranks have.

    A program may write to them all the same, as to a teacher that follows the model. So each rank
    compares the sums of their bits.

    Args:
        frozen: The parameters, equal on all ranks.
    """

    def __init__(self, frozen: Sequence[Tensor]) -> None:
        self.settle(frozen)

    def settle(self, frozen: Sequence[Tensor]) -> None:
        """Learn that all ranks have these values now."""
        self._told: list[tuple[torch.Size, int]] | None = _bits(frozen)
        self._norms: list[Tensor] | None = None

    def unsettle(self) -> None:
        """Learn that the ranks may have different values."""
        self._told = None

    def changed(self, frozen: Sequence[Tensor]) -> bool:
        """Whether some have other values than all ranks had, or are not finite."""
        if self._told is None or _bits(frozen) != self._told:
            return True
        return not all(norm.isfinite() for norm in self.norms(frozen))

    def norms(self, frozen: Sequence[Tensor]) -> list[Tensor]:
        """Return the norm of each parameter in float64; computed once for the same values."""
        if self._norms is None:
            self._norms = [torch._foreach_norm([one.double()], 2)[0] for one in frozen]
        return self._norms


def _bits(tensors: Sequence[Tensor]) -> list[tuple[torch.Size, int]]:
    """Return shape and sum of the bits of each tensor."""
    sums = []
    for tensor in tensors:
        flat = tensor.contiguous().view(-1).view(torch.uint8)
        whole = len(flat) // _WORD * _WORD
        sums.append(flat[:whole].view(torch.int64).sum() + flat[whole:].sum())
    values = torch.stack(sums).tolist() if sums else []
    return [(tensor.shape, value) for tensor, value in zip(tensors, values, strict=True)]
