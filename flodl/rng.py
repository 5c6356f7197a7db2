"""Random numbers for the Python side of a program: order of files, augmentation, coin flips.

Torch's generators are made to fill tensors. Each draw takes microseconds and advances the state
that weights and dropout depend on. :class:`Rng` is independent of them: neither affects the other.
"""

from __future__ import annotations

import math
import random
from collections.abc import MutableSequence
from typing import Any, Self, final


@final
class Rng:
    """A stream of random numbers with its own state (Mersenne Twister).

    Create it with :meth:`seed` or :meth:`from_entropy`. Equal seeds give equal streams on every
    machine and in every process. A copy, a clone and an unpickled stream continue where the
    original stood. Do not use it for secrets.
    """

    def __init__(self, source: random.Random) -> None:
        self._source = source

    @classmethod
    def seed(cls, seed: int) -> Self:
        """Start the stream of a seed.

        Args:
            seed: An integer of at least 0.

        Raises:
            ValueError: ``seed`` is negative or not an integer.
        """
        # Python's generator takes the absolute value, so -1 would give the stream of 1.
        if not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed must be an integer of at least 0, got {seed!r}")
        return cls(random.Random(seed))  # noqa: S311 - made to be repeatable

    @classmethod
    def from_entropy(cls) -> Self:
        """Start a stream that cannot be repeated; the operating system seeds it."""
        return cls(random.Random())  # noqa: S311 - not for secrets

    def usize(self, n: int) -> int:
        """Draw an index: an integer of 0 … n-1, all equally likely.

        Raises:
            ValueError: ``n`` is below 1.
        """
        if n < 1:
            raise ValueError(f"n must be at least 1 to draw an index below it, got {n}")
        return self._source.randrange(n)

    def range(self, lo: int, hi: int) -> int:
        """Draw an integer of lo … hi-1, all equally likely.

        Raises:
            ValueError: ``hi`` is not above ``lo``.
        """
        if lo >= hi:
            raise ValueError(f"the range from {lo} to {hi} is empty: hi must be above lo")
        return self._source.randrange(lo, hi)

    def f32(self) -> float:
        """Draw from [0, 1), a multiple of 2⁻²⁴: a value that single precision holds exactly."""
        return self._source.getrandbits(24) * 2.0**-24

    def f64(self) -> float:
        """Draw from [0, 1), a multiple of 2⁻⁵³."""
        return self._source.random()

    def bernoulli(self, p: float) -> bool:
        """Return True with probability ``p``.

        Raises:
            ValueError: ``p`` is not within 0 … 1.
        """
        if not 0 <= p <= 1:
            raise ValueError(f"p must be a probability of 0 … 1, got {p!r}")
        return self.f64() < p

    def normal(self, mean: float, std: float) -> float:
        """Draw from the normal distribution (Box and Muller, 1958, the cosine branch).

        Args:
            mean: Centre of the distribution.
            std: Standard deviation, at least 0.

        Raises:
            ValueError: ``std`` is negative or nan.
        """
        if not std >= 0:
            raise ValueError(f"std must be at least 0, got {std!r}")
        radius = math.sqrt(-2 * math.log(1 - self.f64()))  # 1 - [0, 1) keeps the logarithm finite
        return mean + std * radius * math.cos(2 * math.pi * self.f64())

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Shuffle a list in place (Fisher and Yates).

        Raises:
            TypeError: ``items`` is a tensor, an array or another type that is not a list.
        """
        # Rows of tensors and arrays are views: swapping two of them would duplicate one.
        if not isinstance(items, MutableSequence):
            raise TypeError(
                f"shuffle exchanges the items of a list, not of a {type(items).__name__}; for "
                "tensors and arrays shuffle a list of indices and index with it"
            )
        self._source.shuffle(items)

    def clone(self) -> Self:
        """Copy the stream: both continue with the same numbers, independently."""
        source = random.Random()  # noqa: S311 - its state is replaced at once
        source.setstate(self._source.getstate())
        return type(self)(source)
