"""The generators of the program: whether somebody drew from them, and their seeds for a data set.

Without a cache, a worker process seeds its generators for each batch. With a cache, each sample has
a seed of its own, which the epoch does not change. So a sample that is read again after a resume,
or because it did not fit into the cache, is the one that was kept before.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from flodl.data.dataset import BatchDataSet
from flodl.data.feed import read_rows
from flodl.data.seeds import own_seed
from flodl.errors import DataError

_MT19937_BYTES = 624 * 4 + 4


def fingerprint() -> tuple[Any, ...]:
    """Return a value that changes when somebody draws from a generator of the program."""
    bits: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
    # NumPy builds `state` number by number, which takes longer than reading some batches.
    numpy = (
        ctypes.string_at(bits.ctypes.state_address, _MT19937_BYTES)
        if type(bits) is np.random.MT19937
        else repr(bits.state)
    )
    return random.getstate(), numpy, torch.get_rng_state().numpy().tobytes()


def seed_generators(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch on the CPU."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


def seed_program(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch, also those of accelerators."""
    seed_generators(seed)
    torch.manual_seed(seed)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the generators of the program at the end."""
    python, numpy, own = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(own)


@final
class SampleReader:
    """Reads samples so that the transforms of each draw from its own seed.

    The samples of the first batch are read one by one. If none of them draws, later batches are
    read as a whole. Once one draws, it is read again, and from then on each sample is read alone.

    Args:
        source: The data set.
    """

    def __init__(self, source: BatchDataSet) -> None:
        self._source = source
        self._draws: bool | None = None  # not known before the first batch

    def read(self, rows: Sequence[int], seed: int) -> tuple[Tensor, ...]:
        """Read samples; this leaves the generators of the program in another state.

        Args:
            rows: Sample numbers.
            seed: Seed of the training.

        Raises:
            DataError: The samples are malformed.
        """
        if self._draws is False:
            batch, self._draws = self._looked_at(rows, seed)
            if not self._draws or len(rows) == 1:
                return batch
        if self._draws is None:
            looked_at = [self._looked_at([row], seed) for row in rows]
            self._draws = any(draws for _, draws in looked_at)
            samples = [sample for sample, _ in looked_at]
        else:
            samples = [self._seeded([row], seed) for row in rows]
        try:
            return tuple(torch.cat(column) for column in zip(*samples, strict=True))
        except (ValueError, RuntimeError) as error:
            raise DataError(
                f"samples {rows[0]} to {rows[-1]} have several shapes, and a cache keeps samples "
                "of one shape; pad them to one, or leave out the cache"
            ) from error

    def _seeded(self, rows: Sequence[int], seed: int) -> tuple[Tensor, ...]:
        seed_generators(own_seed(seed, rows[0]))
        return read_rows(self._source, rows)

    def _looked_at(self, rows: Sequence[int], seed: int) -> tuple[tuple[Tensor, ...], bool]:
        """Read samples together, and tell whether that has drawn numbers."""
        seed_generators(own_seed(seed, rows[0]))
        before = fingerprint()
        batch = read_rows(self._source, rows)
        return batch, fingerprint() != before
