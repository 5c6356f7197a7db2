"""The order in which an epoch visits its samples, drawn again and given out in pieces."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import TYPE_CHECKING, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray

from flodl.distributed.spilled_permutation import BELOW, SpilledPermutation
from flodl.errors import RunDirectoryError

if TYPE_CHECKING:
    from flodl.distributed.sample_ledger import LedgerFacts


IN_MEMORY = 1 << 27
"""Samples up to which a permutation is drawn in memory, with four bytes for each. From ``BELOW``
samples on, torch's shuffle cannot be carried out in parts; it then works on a mapped file, whose
memory the system can take back."""


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
        return Permutation(facts.samples, seed, mapped=facts.samples >= BELOW)
    return _AsStored() if facts.sampler == "sequential" else None


@final
class _AsStored:
    def part(self, start: int, stop: int) -> NDArray[np.int64]:
        return np.arange(start, stop, dtype=np.int64)


@final
class Permutation:
    """What ``torch.randperm`` draws; numbers of 32 bits come in the same order as those of 64.

    Args:
        samples: How many numbers.
        seed: Of torch's generator.
        mapped: Keep the numbers in a temporary file that is mapped into memory.
    """

    def __init__(self, samples: int, seed: int, *, mapped: bool = False) -> None:
        kind = torch.int32 if samples < 1 << 31 else torch.int64
        drawn = _mapped(samples, kind) if mapped else torch.empty(samples, dtype=kind, device="cpu")
        torch.randperm(samples, generator=torch.Generator().manual_seed(seed), out=drawn)
        self._drawn = drawn.numpy()

    def part(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the numbers at the places ``start … stop-1``."""
        return self._drawn[start:stop].astype(np.int64)


def _mapped(count: int, kind: torch.dtype) -> torch.Tensor:
    """Numbers in a file without a name: it is gone when nobody uses the numbers any more.

    Raises:
        RunDirectoryError: The disk has no room for them.
    """
    size = count * kind.itemsize
    with tempfile.TemporaryFile() as file:
        try:
            reserve = getattr(os, "posix_fallocate", None)
            if reserve is not None:  # a disk that is full later would end the process
                reserve(file.fileno(), 0, size)
            file.truncate(size)
        except OSError as error:
            raise RunDirectoryError(
                f"the order of {count:,} samples needs {size:,} bytes of temporary space in "
                f"{tempfile.gettempdir()}: {error.strerror or error}; set TMPDIR to a folder with "
                "room"
            ) from error
        return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=kind)
