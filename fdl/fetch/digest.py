"""Digests of archives: the one that publishers print, and one that takes no time.

SHA-256 takes a quarter of the time of an installation on processors that have no instructions for
it. Where no publisher's digest is known there is nothing to compare one with but what was computed
here before, and BLAKE3 does that as safely, some eight times as fast.
"""

from __future__ import annotations

import hashlib
from typing import Literal, NamedTuple, Protocol, get_args

Algorithm = Literal["blake3", "sha256"]

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


class Digest(NamedTuple):
    """A digest of a file.

    Attributes:
        algorithm: How it was computed.
        value: In hexadecimal, lower case.
    """

    algorithm: Algorithm
    value: str

    def __str__(self) -> str:
        return f"{self.algorithm.upper()} {self.value}"


class Hasher(Protocol):
    """What computes a digest."""

    def update(self, data: bytes, /) -> object:
        """Take in what follows."""

    def hexdigest(self) -> str:
        """The digest of what was taken in, in hexadecimal."""


def hasher(algorithm: Algorithm) -> Hasher:
    """Something that computes a digest."""
    if algorithm == "sha256":
        return hashlib.sha256()
    import blake3

    return blake3.blake3()
