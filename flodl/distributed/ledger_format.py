"""How batches that a rank trained are packed: runs of equally spaced ones, and a hash of each.

A segment holds what one rank trained between two appends. It names samples by their place in the
epoch's order, so that a batch, and a part of one, is written alike: where it starts and how many
samples it has. Most runs follow the one before, which costs them three or four bytes; the hash of a
batch is 8 bytes, BLAKE2b of its sample numbers as little-endian int64.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HASH_BYTES = 8

# What the first byte of a run says about it.
_NEW_EPOCH, _NEW_SIZE, _SEVERAL, _SPACED, _UNALIGNED = 1, 2, 4, 8, 16


@final
@dataclass(slots=True)
class Stretch:
    """Batches of one rank and one epoch with equal distances."""

    epoch: int
    first: int
    """Place of the first sample in the epoch's order."""
    size: int
    """Samples of each batch."""
    position: int
    """Where the training stood before the first of them, in batches of all ranks."""
    stride: int = 0
    """Samples from one batch to the next; 0 for a single one."""
    hashes: bytearray = field(default_factory=bytearray)

    @property
    def count(self) -> int:
        """Number of batches."""
        return len(self.hashes) // HASH_BYTES

    @property
    def last(self) -> int:
        """Place of the first sample of the last batch."""
        return self.first + (self.count - 1) * self.stride

    def batches(self) -> Iterator[tuple[int, bytes]]:
        """Yield where each batch starts, and its hash."""
        for index in range(self.count):
            at = index * HASH_BYTES
            yield self.first + index * self.stride, bytes(self.hashes[at : at + HASH_BYTES])


def rows_hash(rows: bytes) -> bytes:
    """Hash sample numbers, given as little-endian int64."""
    return hashlib.blake2b(rows, digest_size=HASH_BYTES).digest()


def pack_segment(rank: int, unit: int, stretches: Sequence[Stretch]) -> bytes:
    """Pack what one rank trained.

    Args:
        rank: Of the process.
        unit: Samples of a full batch.
        stretches: In the order of training.
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
    """Return the rank of a segment and what it trained.

    Raises:
        ValueError: The bytes are no segment.
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
            raise ValueError("it holds batches that cannot be")
        stretches.append(Stretch(epoch, first, size, position, stride, hashes))
        place = stretches[-1].last + size
    reader.end()
    return rank, stretches


def pack_append(position: int, segments: Sequence[bytes]) -> bytes:
    """Pack the segments that all ranks gave at one position of the training."""
    out = bytearray(_number(position) + _number(len(segments)))
    for segment in segments:
        out += _number(len(segment)) + segment
    return bytes(out)


def unpack_append(data: bytes) -> tuple[int, list[tuple[int, list[Stretch]]]]:
    """Return the position, and what each rank trained.

    Raises:
        ValueError: The bytes are something else.
    """
    reader = Reader(data)
    position = reader.number()
    segments = [unpack_segment(reader.take(reader.number())) for _ in range(reader.number())]
    reader.end()
    return position, segments


@final
class Reader:
    """Takes bytes from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """So many bytes.

        Raises:
            ValueError: There are fewer.
        """
        piece = self._data[self._at : self._at + count]
        if len(piece) < count:
            raise ValueError("it ends too early")
        self._at += count
        return piece

    def number(self) -> int:
        """A number from 0 on, seven bits a byte.

        Raises:
            ValueError: It is too large, or cut off.
        """
        value = 0
        for shift in range(0, 63, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("it holds a number that cannot be")

    def signed(self) -> int:
        """A number of either sign.

        Raises:
            ValueError: It is too large, or cut off.
        """
        value = self.number()
        return -(value >> 1) - 1 if value & 1 else value >> 1

    def end(self) -> None:
        """Make sure that nothing is left.

        Raises:
            ValueError: Something is.
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
