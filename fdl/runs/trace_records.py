"""The records of ``steps.trace``: their layout, and what is left of a damaged file.

docs/reference/run-record.md describes the format.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from pathlib import Path
from typing import Any, NamedTuple

from fdl.base.files import open_own

TRACE = "steps.trace"
MAGIC = b"flodl steps 1\n"
_ANY_VERSION = b"flodl steps "
_HEAD = struct.Struct("<cI")
_CRC = struct.Struct("<I")
_ORDER = struct.Struct("<Q16sB")
_PIECE = struct.Struct("<QQIBB")
_BATCHES = struct.Struct("<QQQQQQQIIB")
_VALUES = struct.Struct("<Qc")
_DIGEST = struct.Struct("<BQ16s")
_SAMPLES = struct.Struct("<Q")


class Record(NamedTuple):
    """One whole record of a trace."""

    at: int
    """The byte at which it begins."""
    kind: str
    content: memoryview


class Records(NamedTuple):
    """The records of a file, up to the first that is not whole."""

    records: list[Record]
    torn: int
    """Bytes of a last record that was not written completely."""
    damage: str
    """Why the rest of the file cannot be read, or empty."""


class Order(NamedTuple):
    """The order of the samples in an epoch."""

    epoch: int
    digest: bytes
    form: int


class Piece(NamedTuple):
    """A part of a listed order."""

    epoch: int
    start: int
    numbers: array[int]


class Batches(NamedTuple):
    """Equally spaced batches, as a record lists them."""

    number: int
    """Number of the first of them in the session."""
    epoch: int
    step: int
    start: int
    size: int
    stride: int
    many: int
    """0: until the next record of this kind."""
    place: int
    parts: int
    flags: int


class Digest(NamedTuple):
    """A digest of weights (0) or of a batch (1)."""

    what: int
    step: int
    digest: bytes
    single: tuple[bytes, ...]
    """The beginning of the hash of each tensor, or 8 bytes for each sample; may be empty."""


def read_records(file: Path) -> Records | None:
    """Read all whole records; None if the file is missing or not a trace of this version."""
    try:
        with open_own(file) as stream:
            data = memoryview(stream.read())
    except OSError:
        return None
    if data[: len(MAGIC)] != MAGIC:
        return None
    records: list[Record] = []
    at, size = len(MAGIC), len(data)
    while at < size:
        if size - at < _HEAD.size:
            return Records(records, size - at, "")
        kind, length = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        if end + _CRC.size > size:
            return Records(records, size - at, "")
        if zlib.crc32(data[at:end]) != _CRC.unpack_from(data, end)[0]:
            return Records(records, 0, f"the record at byte {at} of {file} is damaged")
        records.append(Record(at, kind.decode("latin-1"), data[at + _HEAD.size : end]))
        at = end + _CRC.size
    return Records(records, 0, "")


def other_version(file: Path) -> str:
    """The version of a trace that this fdl cannot read, or empty."""
    try:
        with open_own(file) as stream:
            line = stream.readline(64)
    except OSError:
        return ""
    known = line.startswith(_ANY_VERSION) and line != MAGIC
    return line.removeprefix(_ANY_VERSION).strip().decode("ascii", "replace") if known else ""


def unpack_json(content: memoryview) -> Any:
    """The JSON value of a record.

    Raises:
        ValueError: It is not JSON.
    """
    return json.loads(bytes(content))


def unpack_order(content: memoryview) -> Order:
    """An ``O`` record.

    Raises:
        struct.error: It has another length.
    """
    return Order(*_ORDER.unpack(content))


def unpack_piece(content: memoryview) -> Piece:
    """An ``I`` record.

    Raises:
        ValueError: It does not hold the numbers that it announces.
        struct.error: It is too short.
    """
    epoch, start, count, width, packed = _PIECE.unpack_from(content)
    data = bytes(content[_PIECE.size :])
    data = zlib.decompress(data) if packed else data
    if width not in (1, 2, 4, 8) or len(data) != count * width:
        raise ValueError("an order has another length than it says")
    return Piece(epoch, start, _numbers({1: "B", 2: "H", 4: "I", 8: "Q"}[width], data))


def unpack_batches(content: memoryview) -> Batches:
    """A ``B`` record.

    Raises:
        struct.error: It has another length.
    """
    return Batches(*_BATCHES.unpack(content))


def unpack_values(content: memoryview) -> tuple[int, array[float]]:
    """An ``L`` or ``G`` record: the number of the first value, and the values.

    Raises:
        ValueError: It has another type.
        struct.error: It is too short.
    """
    first, kind = _VALUES.unpack_from(content)
    values = _numbers(kind.decode("latin-1"), bytes(content[_VALUES.size :]))
    return first, values if values.typecode == "d" else array("d", values)


def unpack_digest(content: memoryview) -> Digest:
    """A ``D`` record.

    Raises:
        struct.error: It is too short.
    """
    what, step, digest = _DIGEST.unpack_from(content)
    rest = bytes(content[_DIGEST.size :])
    return Digest(what, step, digest, tuple(rest[i : i + 8] for i in range(0, len(rest), 8)))


def unpack_samples(content: memoryview) -> tuple[int, bytes]:
    """An ``S`` record: the number of the first sample, and 8 bytes for each.

    Raises:
        struct.error: It is too short.
    """
    (first,) = _SAMPLES.unpack_from(content)
    return first, bytes(content[_SAMPLES.size :])


def _numbers(kind: str, data: bytes) -> array[Any]:
    values: array[Any] = array(kind)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
