"""``steps.trace``: the layout of its records, how a training writes them, and how they are read.

docs/reference/run-record.md describes the format.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import zlib
from array import array
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, final

from fdl.base.files import extend
from fdl.base.masking import KNOWN
from fdl.base.own_files import open_own

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


class _Piece(NamedTuple):
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
    """The step of the first of them, counted from 1."""
    start: int
    """Place of its first sample in the order of the epoch."""
    size: int
    stride: int
    many: int = 0
    """0: until the next record of this kind."""
    place: int = 0
    parts: int = 1
    """Batches of each step."""
    flags: int = 0

    def joined(self, other: Batches) -> Batches | None:
        """These batches and a single one behind them; None if that does not fit."""
        gap = other.start - (self.start + (self.many - 1) * self.stride)
        fits = (
            (other.epoch, other.size, other.parts) == (self.epoch, self.size, self.parts)
            and other.step == self.step + self.many // self.parts
            and (gap == self.stride or (self.many == 1 and gap > 0))
        )
        return self._replace(stride=gap, many=self.many + 1) if fits else None


UNNUMBERED = 1
"""Flag of batches whose samples have no numbers."""


class Digest(NamedTuple):
    """A digest of weights (0) or of a batch (1)."""

    what: int
    step: int
    digest: bytes
    single: tuple[bytes, ...]
    """The beginning of the hash of each tensor, or 8 bytes for each sample; may be empty."""


def read_records(file: Path) -> Records | None:
    """The records of a trace; None if the file is not one of this version."""
    try:
        with open_own(file) as stream:
            data = memoryview(stream.read())
    except OSError:
        return None
    records, at = _split(data)
    if not at:
        return None
    left = len(data) - at
    whole = left >= _HEAD.size and left >= _HEAD.size + _HEAD.unpack_from(data, at)[1] + _CRC.size
    if not whole:
        return Records(records, left, "")
    return Records(records, 0, f"the record at byte {at} of {file} is damaged")


def _split(data: memoryview) -> tuple[list[Record], int]:
    """The whole records at the beginning of a file, and the byte at which they end; 0 for none."""
    records: list[Record] = []
    if data[: len(MAGIC)] != MAGIC:
        return records, 0
    at = len(MAGIC)
    while len(data) - at >= _HEAD.size:
        kind, length = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        stored = data[end : end + _CRC.size]
        if len(stored) < _CRC.size or stored != _CRC.pack(zlib.crc32(data[at:end])):
            break
        records.append(Record(at, kind.decode("latin-1"), data[at + _HEAD.size : end]))
        at = end + _CRC.size
    return records, at


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


def unpack_piece(content: memoryview) -> _Piece:
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
    return _Piece(epoch, start, _numbers({1: "B", 2: "H", 4: "I", 8: "Q"}[width], data))


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


_PIECE_SAMPLES = 1 << 18
_TRIED = 1 << 14
"""Samples of an order that show whether it pays to compress it."""
_WIDTHS = (1, 2, 4, 8)


@final
class TraceFile:
    """The file; each method appends one kind of record. Threads may share it.

    An earlier file is continued: an incomplete last record is cut off.

    Args:
        path: Path of the file.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_BINARY", 0)
        self._descriptor = os.open(path, flags, 0o666)
        length = whole_length(path.read_bytes())
        os.ftruncate(self._descriptor, length)
        self._lock = Lock()
        if not length:
            self._write(MAGIC)

    def session(self, facts: Mapping[str, Any]) -> None:
        """Begin a session."""
        self._add(b"H", _json(facts))

    def names(self, names: Sequence[str]) -> None:
        """Write the names of the tensors in digests of weights."""
        self._add(b"N", _json(list(names)))

    def order(self, epoch: int, digest: bytes, form: int) -> None:
        """Write where the order of an epoch comes from."""
        self._add(b"O", _ORDER.pack(epoch, digest, form))

    def listed(self, epoch: int, order: Any) -> None:
        """Write the order of an epoch itself.

        Args:
            epoch: Counted from 0.
            order: A tensor ``[samples]``, int64 on the CPU.
        """
        numbers = order.numpy()
        most = int(numbers.max()) if len(numbers) else 0
        width = next(one for one in _WIDTHS if most < 1 << 8 * one)
        numbers = numbers.astype(f"<u{width}")
        packed = _pays(numbers[:_TRIED].tobytes())
        for start in range(0, len(numbers), _PIECE_SAMPLES):
            piece = numbers[start : start + _PIECE_SAMPLES]
            data = zlib.compress(piece.tobytes(), 1) if packed else piece.tobytes()
            self._add(b"I", _PIECE.pack(epoch, start, len(piece), width, packed) + data)

    def batches(self, batches: Batches) -> None:
        """Write which batches follow; the reference of the format describes the fields."""
        self._add(b"B", _BATCHES.pack(*batches))

    def losses(self, number: int, values: Sequence[float]) -> None:
        """Write the losses of consecutive batches."""
        self._add(b"L", _values(number, values))

    def norms(self, step: int, values: Sequence[float]) -> None:
        """Write the gradient norms of consecutive steps."""
        self._add(b"G", _values(step, values))

    def digest(self, what: int, step: int, digest: bytes, single: Sequence[bytes] = ()) -> None:
        """Write a digest of weights (0) or of a batch (1)."""
        self._add(b"D", _DIGEST.pack(what, step, digest) + b"".join(one[:8] for one in single))

    def samples(self, first: int, digests: bytes) -> None:
        """Write 8 bytes for each of consecutive samples of the data."""
        self._add(b"S", _SAMPLES.pack(first) + digests)

    def end(self, facts: Mapping[str, Any]) -> None:
        """End the session."""
        self._add(b"Z", _json(facts))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _add(self, kind: bytes, content: bytes) -> None:
        record = _HEAD.pack(kind, len(content)) + content
        self._write(record + _CRC.pack(zlib.crc32(record)))

    def _write(self, data: bytes) -> None:
        with self._lock:
            extend(self._descriptor, data)


def whole_length(data: bytes) -> int:
    """How many bytes of a file are whole records; 0 if it is not a trace."""
    return _split(memoryview(data))[1]


def _json(content: object) -> bytes:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)
    return KNOWN.text(text).encode()


def _values(first: int, values: Sequence[float]) -> bytes:
    kind, packed = b"d", array("d", values)
    # Conversion to float32 raises if a finite value is too large for it.
    try:
        single = array("f", packed)
    except OverflowError:
        single = array("f")
    if array("d", single).tobytes() == packed.tobytes():
        kind, packed = b"f", single
    if sys.byteorder == "big":
        packed.byteswap()
    return _VALUES.pack(first, kind) + packed.tobytes()


def _pays(data: bytes) -> bool:
    return bool(data) and len(zlib.compress(data, 1)) < 0.7 * len(data)
