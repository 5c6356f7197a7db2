"""The records of a zip archive, read from bytes; APPNOTE.TXT of PKWARE, version 6.3.10.

Nothing here trusts the data beyond its length. :mod:`fdl.fetch.plan` decides which names members
may have and where they may go.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

ENCRYPTED = 1 << 0 | 1 << 6 | 1 << 13
"""Flags of traditional encryption, of strong encryption, and of a masked directory."""

PATCH = 1 << 5
DESCRIPTOR = 1 << 3
"""Flag: size and checksum follow after the data."""

_UTF8 = 1 << 11

LOCAL = b"PK\3\4"
CENTRAL = b"PK\1\2"
_DESCRIPTOR_SIGNATURE = b"PK\7\x08"
END = b"PK\5\6"
_END64 = b"PK\6\6"
_LOCATOR64 = b"PK\6\7"

_LOCAL = struct.Struct("<6x2H4x3I2H")
_CENTRAL = struct.Struct("<4xH2x2H4x3I3H4x2I")
"""Without signature, versions, times and unused fields."""
_ENDING = struct.Struct("<4s4H2IH")
_ENDING64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")

LOCAL_SIZE = _LOCAL.size
CENTRAL_SIZE = _CENTRAL.size
LARGEST_ENDING = _ENDING.size + 0xFFFF + _LOCATOR.size + _ENDING64.size
LARGEST_DESCRIPTOR = 24

_ZIP64 = 1
_LIMIT32 = 0xFFFFFFFF
_LIMIT16 = 0xFFFF


class NotZipError(Exception):
    """The bytes are not a zip archive, or a damaged one; the text says what is wrong."""


class Ending(NamedTuple):
    """The place of the directory in an archive, and the number of its entries."""

    offset: int
    size: int
    entries: int


class Entry(NamedTuple):
    """The entry of one member in the directory.

    Attributes:
        name: The name as written there.
        system: The kind of system that wrote it; 3 is Unix.
        attributes: On Unix the mode is in the upper half.
        flags: Encryption, descriptor, encoding.
        method: The packing method.
        crc: CRC-32 of the unpacked content.
        packed: Bytes in the archive.
        size: Bytes after unpacking.
        offset: The position of its local header.
    """

    name: str
    system: int
    attributes: int
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    offset: int


class LocalHeader(NamedTuple):
    """The header before a member; sizes and CRC-32 are 0 if a descriptor follows."""

    name: str
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    length: int


def find_ending(tail: bytes, length: int) -> Ending:
    """Find the end record.

    ``tail`` is the end of an archive of some length: :data:`LARGEST_ENDING` bytes, or all of it.

    Raises:
        NotZipError: There is none, or it is invalid.
    """
    at = tail.rfind(END)
    while at >= 0:
        if at + _ENDING.size <= len(tail):
            _, disk, first, here, entries, size, offset, comment = _ENDING.unpack_from(tail, at)
            if at + _ENDING.size + comment == len(tail):
                break
        at = tail.rfind(END, 0, at + 3)
    else:
        raise NotZipError("it does not end like a zip archive")
    begin = at
    if _LIMIT32 in (size, offset) or _LIMIT16 in (disk, entries):
        locator = at - _LOCATOR.size
        if locator >= 0 and tail.startswith(_LOCATOR64, locator):
            _, _, where, _ = _LOCATOR.unpack_from(tail, locator)
            begin = where - (length - len(tail))
            if begin < 0 or begin + _ENDING64.size > locator or tail[begin:][:4] != _END64:
                raise NotZipError("its zip64 end record is damaged")
            record = _ENDING64.unpack_from(tail, begin)
            disk, first, here, entries, size, offset = record[4:]
    if disk or first or here != entries:
        raise NotZipError("it is one of several volumes")
    if offset + size != length - len(tail) + begin:
        raise NotZipError("its directory is not where its end record says")
    return Ending(offset, size, entries)


def read_entries(directory: bytes, ending: Ending) -> Iterator[Entry]:
    """Read the directory.

    Raises:
        NotZipError: It is damaged.
    """
    at = 0
    for _ in range(ending.entries):
        if at + _CENTRAL.size > len(directory) or directory[at : at + 4] != CENTRAL:
            raise NotZipError("its directory is damaged")
        made_by, flags, method, crc, packed, size, *lengths, attributes, offset = (
            _CENTRAL.unpack_from(directory, at)
        )
        name_length, extra_length, comment_length = lengths
        at += _CENTRAL.size
        raw = directory[at : at + name_length]
        if _LIMIT32 in (size, packed, offset):
            extra = directory[at + name_length : at + name_length + extra_length]
            size, packed, offset = _zip64(extra, [size, packed, offset])
        at += name_length + extra_length + comment_length
        name = _decode(raw, flags)
        yield Entry(name, made_by >> 8, attributes, flags, method, crc, packed, size, offset)
    if at != len(directory):
        raise NotZipError("its directory is damaged")


def local_length(head: bytes) -> int:
    """Length of the header before a member, from its first :data:`LOCAL_SIZE` bytes."""
    name_length, extra_length = _LOCAL.unpack(head)[-2:]
    return LOCAL_SIZE + int(name_length) + int(extra_length)


def read_local(data: bytes) -> LocalHeader:
    """Read the header before a member from the archive's bytes, at least the whole header.

    Raises:
        NotZipError: It is damaged.
    """
    if len(data) < LOCAL_SIZE or data[:4] != LOCAL:
        raise NotZipError("the header of a member is damaged")
    flags, method, crc, packed, size, name_length, extra_length = _LOCAL.unpack_from(data)
    length = LOCAL_SIZE + name_length + extra_length
    if len(data) < length:
        raise NotZipError("the header of a member is damaged")
    raw = data[LOCAL_SIZE : LOCAL_SIZE + name_length]
    if _LIMIT32 in (size, packed):
        size, packed = _zip64(data[LOCAL_SIZE + name_length : length], [size, packed])
    return LocalHeader(_decode(raw, flags), flags, method, crc, packed, size, length)


def descriptor_length(data: bytes, crc: int, packed: int, size: int) -> int:
    """Length of the descriptor after a member, at the beginning of ``data``.

    The signature and 64-bit sizes are both optional, and no mark says whether they are there. So
    the known values must decide: CRC-32, packed and unpacked size in bytes.

    Raises:
        NotZipError: The descriptor has other values for the member.
    """
    for signature in (_DESCRIPTOR_SIGNATURE, b""):
        for sizes in ("<I2I", "<I2Q"):
            try:
                expected = signature + struct.pack(sizes, crc, packed, size)
            except struct.error:
                continue
            if data.startswith(expected):
                return len(expected)
    raise NotZipError("size or checksum of a member is wrong")


def _zip64(extra: bytes, fields: list[int]) -> list[int]:
    """Replace values that did not fit in 32 bits by those of the zip64 field, in fixed order."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        at += 4
        if kind != _ZIP64:
            at += length
            continue
        end = min(at + length, len(extra))
        for index, value in enumerate(fields):
            if value == _LIMIT32:
                if at + 8 > end:
                    raise NotZipError("a zip64 field is damaged")
                (fields[index],) = struct.unpack_from("<Q", extra, at)
                at += 8
        break
    return fields


def _decode(raw: bytes, flags: int) -> str:
    if raw.isascii():
        return raw.decode("ascii")
    if not flags & _UTF8:
        return raw.decode("cp437")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise NotZipError("the name of a member is not UTF-8") from None
