"""The checksum of a container: finds bits that flipped on a disk or on the way.

CRC-32 as in gzip and PNG, from the instruction set's own folding where a wheel of isal exists
(10 GB/s), else from zlib (2 GB/s); both give the same number. It guards against accidents only:
whoever alters a file on purpose can alter its checksum, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

BLANK = "crc32:00000000"
"""As long as every digest: holds the place of one that is not known yet."""

_WORTH_A_THREAD = 1 << 18  # bytes: handing over costs as much as a tenth of them


def digest_of(pieces: Iterable[bytes | memoryview]) -> str:
    """The CRC-32 of the bytes of all pieces in order, as ``crc32:`` and eight hex digits."""
    crc32, checksum = _crc32(), 0
    for piece in pieces:
        checksum = crc32(piece, checksum)
    return _text(checksum)


def digest_while(
    begin: bytes, pieces: Iterable[memoryview], action: Callable[[memoryview], object]
) -> str:
    """Do something with every piece while another thread computes the digest.

    Args:
        begin: Goes into the digest first; nothing is done with it.
        pieces: Each stays in memory until the next one is asked for.
        action: Writes a piece, for instance.
    """
    crc32 = _crc32()
    checksum = crc32(begin)
    with ThreadPoolExecutor(1) as thread:
        for piece in pieces:
            if len(piece) < _WORTH_A_THREAD:
                checksum = crc32(piece, checksum)
                action(piece)
                continue
            pending = thread.submit(crc32, piece, checksum)
            try:
                action(piece)
            finally:
                checksum = pending.result()
    return _text(checksum)


@functools.cache
def _crc32() -> Callable[..., int]:
    # Loading isal takes longer than all the rest of the package that only opens a model.
    try:
        from isal.isal_zlib import crc32
    except ImportError:  # a processor without isal wheels
        from zlib import crc32
    return crc32


def _text(checksum: int) -> str:
    return f"crc32:{checksum:08x}"
