"""Random numbers for the Python side of a program: order of files, augmentation, coin flips.

Torch's generators fill tensors; every draw from one costs microseconds and moves the state that
weights and dropout depend on. :class:`Rng` is separate from all of them: what it draws changes
nothing else, and nothing else changes what it draws.
"""

from __future__ import annotations

import math
import random
from collections.abc import MutableSequence
from typing import Any, Self, final


@final
class Rng:
    """A stream of random numbers with a private state (Mersenne Twister).

    Made by :meth:`seed` or :meth:`from_entropy`. Equal seeds give equal streams on every machine
    and in every process. A copy, a clone and an unpickled stream continue where the original
    stood. Not for secrets.
    """

    def __init__(self, source: random.Random) -> None:
        self._source = source

    @classmethod
    def seed(cls, seed: int) -> Self:
        """Start the stream of a seed.

        Args:
            seed: An integer of at least 0.

        Raises:
            ValueError: ``seed`` is negative or no integer.
        """
        # Python's generator takes the absolute value: -1 would silently be the stream of 1.
        if not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed must be an integer of at least 0, got {seed!r}")
        return cls(random.Random(seed))  # noqa: S311 - repeatable is what it is for

    @classmethod
    def from_entropy(cls) -> Self:
        """Start a stream nobody can repeat, seeded by the operating system."""
        return cls(random.Random())  # noqa: S311 - never meant for secrets

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
        """Flip a coin that says True with probability ``p``.

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
        """Bring a list into random order, in place (Fisher and Yates).

        Raises:
            TypeError: ``items`` is a tensor, an array or another type that is no list.
        """
        # Rows of tensors and arrays are views: exchanging two of them would double one.
        if not isinstance(items, MutableSequence):
            raise TypeError(
                f"shuffle exchanges the items of a list, not of a {type(items).__name__}; for "
                "tensors and arrays shuffle a list of indices and index with it"
            )
        self._source.shuffle(items)

    def clone(self) -> Self:
        """Copy the stream: both continue alike and independently."""
        source = random.Random()  # noqa: S311 - takes over the state at once
        source.setstate(self._source.getstate())
        return type(self)(source)
