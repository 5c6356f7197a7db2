"""The order in which an epoch visits its samples, drawn again and given out in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray

from flodl.distributed.spilled_permutation import BELOW, SpilledPermutation

if TYPE_CHECKING:
    from flodl.distributed.sample_ledger import LedgerFacts


IN_MEMORY = 1 << 27
"""Samples up to which a permutation is drawn in memory, with four bytes for each; so it is again
from ``BELOW`` samples on, where torch's shuffle cannot be carried out in parts from the front."""


class DrawnOrder(Protocol):
    """The order of one epoch."""

    def part(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample numbers at the places ``start … stop-1``; parts come in order."""
        ...


def drawn_order(facts: LedgerFacts, epoch: int) -> DrawnOrder | None:
    """Draw the order of an epoch as the samplers of flodl do; None where only the program can."""
    if facts.sampler == "random":
        seed = facts.seed + epoch
        if IN_MEMORY < facts.samples < BELOW:
            return SpilledPermutation(facts.samples, seed)
        return _Permutation(facts.samples, seed)
    return _AsStored() if facts.sampler == "sequential" else None


@final
class _AsStored:
    def part(self, start: int, stop: int) -> NDArray[np.int64]:
        return np.arange(start, stop, dtype=np.int64)


@final
class _Permutation:
    """What ``torch.randperm`` draws; numbers of 32 bits come in the same order as those of 64."""

    def __init__(self, samples: int, seed: int) -> None:
        kind = torch.int32 if samples < 1 << 31 else torch.int64
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randperm(samples, generator=generator, device="cpu", dtype=kind)
        self._drawn = drawn.numpy()

    def part(self, start: int, stop: int) -> NDArray[np.int64]:
        return self._drawn[start:stop].astype(np.int64)
