"""The records of a TFRecord file, checked.

A record is its length (8 bytes), a checksum of these, the data, and a checksum of the data, all
little-endian (https://www.tensorflow.org/tutorials/load_data/tfrecord). The checksum is CRC-32C,
rotated and shifted. The zlib module computes only the other CRC-32.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

_POLYNOMIAL = 0x82F63B78
_HEAD = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_MOST_BYTES = 1 << 30


class DamagedRecordError(Exception):
    """A checksum does not fit.

    Attributes:
        place: Where the record begins, in bytes.
    """

    def __init__(self, place: int) -> None:
        super().__init__(f"the record at byte {place} is damaged")
        self.place = place


def records(stream: BinaryIO) -> Iterator[bytes]:
    """The data of the records. An incomplete last one is left out: its program still writes it.

    Raises:
        DamagedRecordError: A checksum does not fit; nothing behind this record can be found.
    """
    place = 0
    while len(head := stream.read(_HEAD.size)) == _HEAD.size:
        length, checksum = _HEAD.unpack(head)
        if masked(head[:8]) != checksum or length > _MOST_BYTES:
            raise DamagedRecordError(place)
        data = stream.read(length)
        tail = stream.read(_CHECKSUM.size)
        if len(data) < length or len(tail) < _CHECKSUM.size:
            return
        if masked(data) != _CHECKSUM.unpack(tail)[0]:
            raise DamagedRecordError(place)
        yield data
        place += _HEAD.size + length + _CHECKSUM.size


def masked(data: bytes) -> int:
    """The checksum of some bytes as TFRecord files keep it."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), two bytes at a time."""
    table = _table()
    crc = 0xFFFFFFFF
    even = len(data) & ~1
    for word in struct.unpack(f"<{even >> 1}H", data[:even]):
        crc = table[(crc ^ word) & 0xFFFF] ^ (crc >> 16)
    for byte in data[even:]:
        crc = table[((crc ^ byte) & 0xFF) << 8] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@cache
def _table() -> list[int]:
    """For each two bytes, the remainder that they leave."""
    one = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        one.append(crc)
    return [one[(word >> 8) ^ (one[word & 0xFF] & 0xFF)] ^ (one[word & 0xFF] >> 8)
            for word in range(1 << 16)]  # fmt: skip
