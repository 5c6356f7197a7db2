"""Write ``steps.trace``: records with a length and a checksum, appended in one write each.

docs/reference/run-record.md describes the format; ``fdl`` reads it.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import zlib
from array import array
from threading import Lock
from typing import TYPE_CHECKING, Any, final

from fdl.base.masking import KNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

NAME = "steps.trace"
MAGIC = b"flodl steps 1\n"
_HEAD = struct.Struct("<cI")
_CRC = struct.Struct("<I")
_ORDER = struct.Struct("<Q16sB")
_PIECE = struct.Struct("<QQIBB")
_BATCHES = struct.Struct("<QQQQQQQIIB")
_VALUES = struct.Struct("<Qc")
_DIGEST = struct.Struct("<BQ16s")
_SAMPLES = struct.Struct("<Q")
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
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_BINARY", 0)
        self._descriptor = os.open(path, flags, 0o666)
        length = whole_length(path.read_bytes())
        os.ftruncate(self._descriptor, length)
        os.lseek(self._descriptor, length, os.SEEK_SET)
        self._length = length
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

    def listed(self, epoch: int, order: Tensor) -> None:
        """Write the order of an epoch itself.

        Args:
            epoch: Counted from 0.
            order: ``[samples]`` int64 on the CPU.
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

    def batches(
        self,
        number: int,
        epoch: int,
        step: int,
        start: int,
        size: int,
        *,
        stride: int,
        count: int = 0,
        place: int = 0,
        parts: int = 1,
        numbered: bool = True,
    ) -> None:
        """Write which batches follow; the reference of the format describes the arguments."""
        flags = 0 if numbered else 1
        self._add(
            b"B",
            _BATCHES.pack(number, epoch, step, start, size, stride, count, place, parts, flags),
        )

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
        left = memoryview(data)
        with self._lock:
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:
                os.ftruncate(self._descriptor, self._length)
                raise
            self._length += len(data)


def whole_length(data: bytes) -> int:
    """Return how many bytes of a file are whole records; 0 if it is not a trace."""
    if not data.startswith(MAGIC):
        return 0
    view, at = memoryview(data), len(MAGIC)
    while len(view) - at >= _HEAD.size:
        end = at + _HEAD.size + _HEAD.unpack_from(view, at)[1]
        stored = view[end : end + _CRC.size]
        if len(stored) < _CRC.size or stored != _CRC.pack(zlib.crc32(view[at:end])):
            break
        at = end + _CRC.size
    return at


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
