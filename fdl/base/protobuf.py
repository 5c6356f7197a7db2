"""Protocol buffers, read without a description: the number and the value of each field.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}


class BrokenMessageError(ValueError):
    """The bytes are broken; the text says how."""


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: an integer, or the bytes of a longer value.

    Raises:
        BrokenMessageError: The bytes are broken.
    """
    position, end = 0, len(data)
    while position < end:
        tag = data[position]
        position += 1
        if tag > 0x7F:
            tag, position = _varint(data, position - 1)
        wire = tag & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield tag >> 3, value
            continue
        if wire == _BYTES:
            size = data[position] if position < end else 0x80
            position += 1
            if size > 0x7F:
                size, position = _varint(data, position - 1)
        elif wire in _FIXED:
            size = _FIXED[wire]
        else:
            raise BrokenMessageError(f"byte {position} has no meaning there")
        if position + size > end:
            raise BrokenMessageError("it ends in the middle of a field; fetch it again")
        yield tag >> 3, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """An integer of 7 bits per byte, and the position after it."""
    value = shift = 0
    while shift < 64:
        if position >= len(data):
            raise BrokenMessageError("it ends in the middle of a number; fetch it again")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise BrokenMessageError(f"byte {position} does not end the number it is in")
