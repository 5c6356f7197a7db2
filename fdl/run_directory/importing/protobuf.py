"""The fields of a protobuf message, without its schema.

https://protobuf.dev/programming-guides/encoding/ describes the wire format.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_BITS = 64


class DamagedMessageError(Exception):
    """The bytes are not a message."""


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: an integer, or the bytes of a text, a message or a float.

    Raises:
        DamagedMessageError: The bytes are not a message.
    """
    place, end = 0, len(data)
    while place < end:
        key, place = _varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            number, place = _varint(data, place)
            yield key >> 3, number
            continue
        if kind == _BYTES:
            length, place = _varint(data, place)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise DamagedMessageError
        if place + length > end:
            raise DamagedMessageError
        yield key >> 3, data[place : place + length]
        place += length


def signed(number: int) -> int:
    """A varint as a signed integer of 64 bits."""
    return number - (1 << _MOST_BITS) if number >> (_MOST_BITS - 1) else number


def text(value: int | bytes) -> str:
    """A field as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def double(value: int | bytes) -> float:
    """A field of 8 bytes as a number; 0 if it has another size."""
    return _real("<d", value)


def single(value: int | bytes) -> float:
    """A field of 4 bytes as a number; 0 if it has another size."""
    return _real("<f", value)


def _real(form: str, value: int | bytes) -> float:
    if not isinstance(value, bytes) or len(value) != struct.calcsize(form):
        return 0.0
    return float(struct.unpack(form, value)[0])


def varints(value: int | bytes) -> list[int]:
    """A repeated field of integers, packed or one at a time."""
    if isinstance(value, int):
        return [value]
    found, place = [], 0
    while place < len(value):
        number, place = _varint(value, place)
        found.append(number)
    return found


def _varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while shift < _MOST_BITS + 6:
        if place >= len(data):
            raise DamagedMessageError
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & ((1 << _MOST_BITS) - 1), place
        shift += 7
    raise DamagedMessageError
