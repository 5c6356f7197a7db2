"""Seeds for what a data set draws at random."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import index
from typing import NamedTuple


class Seeds(NamedTuple):
    """The seeds for a part of an epoch."""

    training: int
    """Seed of the training; with the number of a sample it decides what a cached one draws."""
    batches: Sequence[int]
    """Seed of each batch, for worker processes that read without a cache."""

    @classmethod
    def of(cls, training: int, epoch: int, numbers: Sequence[int]) -> Seeds:
        """Return the seeds of these batches of an epoch."""
        # The shift leaves 2^32 seeds for the batches of one epoch before those of the next.
        first = (training + epoch) << 32
        if isinstance(numbers, range):
            return cls(training, range(first + numbers.start, first + numbers.stop))
        return cls(training, [first + number for number in numbers])


NO_SEEDS = Seeds(0, range(1 << 32))


def seed_value(value: object) -> int:
    """Check a seed; torch's generators hold it in 64 bits.

    Raises:
        ValueError: It is not an integer, or it is too large.
    """
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 1 << 63
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"seed={value!r}: it must be an integer of at most 63 bits and a sign")
    return number


def own_seed(seed: int, number: int) -> int:
    """Return the seed of one of many that draw for themselves: a sample in a cache, a rank."""
    return mixed(f"{seed}/{number}")


def mixed(text: object) -> int:
    """Spread a value over 63 bits: torch's generator uses only the lower half of a seed."""
    digest = hashlib.blake2b(str(text).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
