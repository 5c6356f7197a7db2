"""The seeds from which random transforms in a data set draw, and reading with them.

Without a cache, a worker process seeds its generators for each batch. With a cache, each sample has
a seed of its own, which the epoch does not change. So a sample that is read again after a resume,
or because it did not fit into the cache, is the one that was kept before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from flodl.data.dataset import BatchDataSet
from flodl.data.feed import read_rows
from flodl.data.seeds import own_seed
from flodl.errors import DataError


class _States(NamedTuple):
    """The states of the generators of a program."""

    python: Any
    numpy: Any
    torch: Tensor

    @classmethod
    def now(cls) -> _States:
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state())

    def restore(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)

    def equals(self, other: _States) -> bool:
        (kind, key, *rest), (other_kind, other_key, *other_rest) = self.numpy, other.numpy
        return (
            self.python == other.python
            and (kind, rest) == (other_kind, other_rest)
            and np.array_equal(key, other_key)
            and torch.equal(self.torch, other.torch)
        )


def seed_generators(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch on the CPU."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


def seed_program(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch, also those of accelerators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the generators of the program at the end."""
    states = _States.now()
    try:
        yield
    finally:
        states.restore()


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
        before = _States.now()
        batch = read_rows(self._source, rows)
        return batch, not before.equals(_States.now())
