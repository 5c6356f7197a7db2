"""Digests of archives: SHA-256, which publishers print, and the fast BLAKE3.

On processors without instructions for SHA-256, it takes a quarter of the time of an installation.
Without a publisher's digest, a digest is only compared with one that was computed here before.
BLAKE3 does that as safely and about eight times as fast.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal, NamedTuple, get_args

Algorithm = Literal["blake3", "sha256"]

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


class Digest(NamedTuple):
    """A digest of a file.

    Attributes:
        algorithm: The algorithm that computed it.
        value: In hexadecimal, lower case.
    """

    algorithm: Algorithm
    value: str

    def __str__(self) -> str:
        return f"{self.algorithm.upper()} {self.value}"


def digest_of(file: Path, algorithm: Algorithm) -> Digest:
    """The digest of a file.

    Raises:
        OSError: It cannot be read.
    """
    if algorithm == "blake3":
        from blake3 import blake3

        return Digest(algorithm, blake3().update_mmap(file).hexdigest())
    with file.open("rb") as stream:
        return Digest(algorithm, hashlib.file_digest(stream, algorithm).hexdigest())
