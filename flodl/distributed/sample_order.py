"""Draw the sample order of an epoch again, and return it in pieces."""

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
"""Up to this number of samples, a permutation is drawn in memory, with four bytes per sample. From
``BELOW`` samples on, torch's shuffle cannot run in parts. It then works on a memory-mapped file,
so that the system can free the memory."""


class DrawnOrder(Protocol):
    """The order of one epoch."""

    def part(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample numbers at positions ``start … stop-1``; ask for parts in order."""
        ...


def drawn_order(facts: LedgerFacts, epoch: int) -> DrawnOrder | None:
    """Draw the order of an epoch as flodl's samplers do; None if only the program can do it."""
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
    """The permutation of ``torch.randperm``; 32-bit numbers have the same order as 64-bit ones.

    Args:
        samples: Number of samples.
        seed: Seed of torch's generator.
        mapped: Whether to keep the numbers in a memory-mapped temporary file.
    """

    def __init__(self, samples: int, seed: int, *, mapped: bool = False) -> None:
        kind = torch.int32 if samples < 1 << 31 else torch.int64
        drawn = _mapped(samples, kind) if mapped else torch.empty(samples, dtype=kind, device="cpu")
        torch.randperm(samples, generator=torch.Generator().manual_seed(seed), out=drawn)
        self._drawn = drawn.numpy()

    def part(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the numbers at positions ``start … stop-1``."""
        return self._drawn[start:stop].astype(np.int64)


def _mapped(count: int, kind: torch.dtype) -> torch.Tensor:
    """Return a tensor in a file without a name; the file is deleted with the tensor.

    Raises:
        RunDirectoryError: The disk has no space for it.
    """
    size = count * kind.itemsize
    with tempfile.TemporaryFile() as file:
        try:
            reserve = getattr(os, "posix_fallocate", None)
            if reserve is not None:  # if the disk fills up later, the process would be killed
                reserve(file.fileno(), 0, size)
            file.truncate(size)
        except OSError as error:
            raise RunDirectoryError(
                f"the order of {count:,} samples needs {size:,} bytes of temporary space in "
                f"{tempfile.gettempdir()}: {error.strerror or error}; set TMPDIR to a folder with "
                "enough space"
            ) from error
        return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=kind)
