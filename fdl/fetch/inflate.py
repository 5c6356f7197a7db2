"""Inflate a member of an archive as its bytes arrive, with the fastest available engine."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, cast

STORED = 0
DEFLATED = 8

_NO_STREAM = "it is not a deflate stream"


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class DamagedError(Exception):
    """The data is not a deflate stream, or ends too early; the text says which."""


def _engine() -> tuple[
    Callable[[int], _Decompressor], Callable[[bytes, int], int], tuple[type[Exception], ...]
]:
    """Decompressor, CRC-32 function and the errors it raises: of ISA-L, else of the interpreter."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.decompressobj, zlib.crc32, (zlib.error,)
    # The type stub declares this class as if it were one of its instances.
    error = cast(type[Exception], isal_zlib.error)
    return isal_zlib.decompressobj, isal_zlib.crc32, (error, zlib.error)


_decompressor, crc32, _ERRORS = _engine()


class Inflater:
    """One deflate stream, inflated in pieces of at most ``most`` bytes.

    Attributes:
        consumed: Bytes of the stream that were read so far; exact after its end.
    """

    def __init__(self, most: int) -> None:
        self._stream = _decompressor(-zlib.MAX_WBITS)
        self._most = most
        self.consumed = 0

    @property
    def ended(self) -> bool:
        """Whether the end of the stream was seen."""
        return self._stream.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Inflate a piece of the stream.

        Raises:
            DamagedError: It is not a deflate stream.
        """
        self.consumed += len(data)
        rest = data
        try:
            while True:
                out = self._stream.decompress(rest, self._most)
                if out:
                    yield out
                rest = self._stream.unconsumed_tail
                if self._stream.eof or not (rest or len(out) == self._most):
                    break
        except _ERRORS:
            raise DamagedError(_NO_STREAM) from None
        self.consumed -= len(self._stream.unused_data)

    def whole(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Inflate all pieces up to the end of the stream; data after it stays unread.

        Raises:
            DamagedError: It is not a deflate stream, or ends too early.
        """
        for piece in pieces:
            yield from self.feed(piece)
            if self.ended:
                return
        raise DamagedError("it breaks off")


def inflate(packed: bytes, size: int) -> bytes:
    """Inflate a short deflate stream at once; not much more than ``size`` bytes are inflated.

    Raises:
        DamagedError: It is not a deflate stream, ends too early or too late, or has another size.
    """
    stream = _decompressor(-zlib.MAX_WBITS)
    try:
        content = stream.decompress(packed, size + 1)
    except _ERRORS:
        raise DamagedError(_NO_STREAM) from None
    if not stream.eof or stream.unused_data or len(content) != size:
        raise DamagedError("it is not a deflate stream of the size that the archive says")
    return content
