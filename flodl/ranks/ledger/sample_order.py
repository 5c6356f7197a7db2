"""Draw the sample order of an epoch again."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from flodl.errors import RunDirectoryError

if TYPE_CHECKING:
    from flodl.ranks.ledger.sample_ledger import LedgerFacts


IN_MEMORY = 1 << 27
"""Above this number of samples, a permutation is drawn into a memory-mapped file, with four bytes
per sample, so that the system can free the memory."""

DrawnOrder: TypeAlias = Callable[[int, int], NDArray[np.int64]]
"""Returns the sample numbers at the positions ``start … stop-1`` of one epoch."""


def drawn_order(facts: LedgerFacts, epoch: int) -> DrawnOrder | None:
    """Draw the order of an epoch as flodl's samplers do; None if only the program can do it."""
    if facts.sampler == "sequential":
        return lambda start, stop: np.arange(start, stop, dtype=np.int64)
    if facts.sampler == "custom":
        return None
    drawn = permutation(facts.samples, facts.seed + epoch)
    return lambda start, stop: drawn[start:stop].astype(np.int64)


def permutation(samples: int, seed: int) -> NDArray[np.signedinteger]:
    """Return ``torch.randperm(samples)``; 32-bit numbers have the same order as 64-bit ones.

    Args:
        samples: Number of samples.
        seed: Seed of torch's generator.

    Raises:
        RunDirectoryError: The disk has no space for an order that is too large for the memory.
    """
    kind = torch.int32 if samples < 1 << 31 else torch.int64
    mapped = samples > IN_MEMORY
    drawn = _mapped(samples, kind) if mapped else torch.empty(samples, dtype=kind, device="cpu")
    torch.randperm(samples, generator=torch.Generator().manual_seed(seed), out=drawn)
    return drawn.numpy()


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
