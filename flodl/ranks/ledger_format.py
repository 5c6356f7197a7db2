"""Pack the batches that a rank trained: stretches of equally spaced batches, and a hash per batch.

A segment holds the batches that one rank trained between two appends. It names samples by their
position in the epoch's order. So a batch and a part of a batch have the same form: the start and
the number of samples. Most stretches follow the previous one and take three or four bytes. The
hash of a batch takes 8 bytes: BLAKE2b of its sample numbers as little-endian int64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

HASH_BYTES = 8

# Flags in the first byte of a stretch.
_NEW_EPOCH, _NEW_SIZE, _SEVERAL, _SPACED, _UNALIGNED = 1, 2, 4, 8, 16


@final
@dataclass(slots=True)
class Stretch:
    """Equally spaced batches of one rank and one epoch."""

    epoch: int
    first: int
    """Position of the first sample in the epoch's order."""
    size: int
    """Samples of each batch."""
    position: int
    """Batches of all ranks before the first of these."""
    stride: int = 0
    """Samples from the start of one batch to the next; 0 for a single batch."""
    hashes: bytearray = field(default_factory=bytearray)

    @property
    def count(self) -> int:
        """Number of batches."""
        return len(self.hashes) // HASH_BYTES

    @property
    def last(self) -> int:
        """Position of the first sample of the last batch."""
        return self.first + (self.count - 1) * self.stride

    def batches(self) -> Iterator[tuple[int, bytes]]:
        """Yield the start and the hash of each batch."""
        for index in range(self.count):
            at = index * HASH_BYTES
            yield self.first + index * self.stride, bytes(self.hashes[at : at + HASH_BYTES])


def rows_hash(rows: bytes | memoryview) -> bytes:
    """Hash sample numbers, given as little-endian int64."""
    return hashlib.blake2b(rows, digest_size=HASH_BYTES).digest()


def pack_segment(rank: int, unit: int, stretches: Sequence[Stretch]) -> bytes:
    """Pack the batches that one rank trained.

    Args:
        rank: Number of the rank.
        unit: Samples of a full batch.
        stretches: The batches, in the order of training.
    """
    out = bytearray(_number(rank) + _number(unit) + _number(len(stretches)))
    epoch, place, size, position = 0, 0, unit, 0
    for one in stretches:
        step = one.first - (place if one.epoch == epoch else 0)
        flags = (
            (_NEW_EPOCH if one.epoch != epoch else 0)
            | (_NEW_SIZE if one.size != size else 0)
            | (_SEVERAL if one.count > 1 else 0)
            | (_SPACED if one.count > 1 and one.stride != one.size else 0)
            | (_UNALIGNED if step % unit else 0)
        )
        out.append(flags)
        if flags & _NEW_EPOCH:
            out += _signed(one.epoch - epoch)
        if flags & _NEW_SIZE:
            out += _number(one.size)
        out += _signed(step if flags & _UNALIGNED else step // unit)
        out += _signed(one.position - position)
        if flags & _SEVERAL:
            out += _number(one.count)
        if flags & _SPACED:
            out += _number(one.stride)
        out += one.hashes
        epoch, size, position = one.epoch, one.size, one.position
        place = one.last + one.size
    return bytes(out)


def unpack_segment(data: bytes) -> tuple[int, list[Stretch]]:
    """Return the rank of a segment and the batches it trained.

    Raises:
        ValueError: The bytes are not a segment.
    """
    reader = Reader(data)
    rank, unit = reader.number(), reader.number()
    stretches: list[Stretch] = []
    epoch, place, size, position = 0, 0, unit, 0
    for _ in range(reader.number()):
        flags = reader.take(1)[0]
        if flags & _NEW_EPOCH:
            epoch, place = epoch + reader.signed(), 0
        if flags & _NEW_SIZE:
            size = reader.number()
        step = reader.signed()
        first = place + (step if flags & _UNALIGNED else step * unit)
        position += reader.signed()
        count = reader.number() if flags & _SEVERAL else 1
        stride = reader.number() if flags & _SPACED else size if flags & _SEVERAL else 0
        hashes = bytearray(reader.take(count * HASH_BYTES))
        if min(epoch, first, position) < 0 or size < 1 or count < 1:
            raise ValueError("it holds impossible batches")
        stretches.append(Stretch(epoch, first, size, position, stride, hashes))
        place = stretches[-1].last + size
    reader.end()
    return rank, stretches


def pack_append(position: int, segments: Sequence[bytes]) -> bytes:
    """Pack the segments of all ranks at one position of the training."""
    out = bytearray(_number(position) + _number(len(segments)))
    for segment in segments:
        out += _number(len(segment)) + segment
    return bytes(out)


def unpack_append(data: bytes) -> tuple[int, list[tuple[int, list[Stretch]]]]:
    """Return the position and the batches that each rank trained.

    Raises:
        ValueError: The bytes do not have this format.
    """
    reader = Reader(data)
    position = reader.number()
    segments = [unpack_segment(reader.take(reader.number())) for _ in range(reader.number())]
    reader.end()
    return position, segments


@final
class Reader:
    """Reads bytes from front to back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes.

        Raises:
            ValueError: There are fewer bytes.
        """
        piece = self._data[self._at : self._at + count]
        if len(piece) < count:
            raise ValueError("it ends too early")
        self._at += count
        return piece

    def number(self) -> int:
        """Return a number of at least 0, with seven bits per byte.

        Raises:
            ValueError: The number is too large or incomplete.
        """
        value = 0
        for shift in range(0, 63, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("it holds an impossible number")

    def signed(self) -> int:
        """Return a signed number.

        Raises:
            ValueError: The number is too large or incomplete.
        """
        value = self.number()
        return -(value >> 1) - 1 if value & 1 else value >> 1

    def end(self) -> None:
        """Check that no bytes are left.

        Raises:
            ValueError: Bytes are left.
        """
        if self._at != len(self._data):
            raise ValueError("it is followed by something else")


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _signed(value: int) -> bytes:
    return _number(-value * 2 - 1 if value < 0 else value * 2)
