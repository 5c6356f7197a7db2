"""Read the binary checkpoints of the Rust flodl; they can be migrated, not loaded.

Layout, little-endian: ``FDLC``, version (u32, 1 or 2, the same layout), structural hash (32 bytes,
zeros if there is none), number of tensors (u32). Then per tensor:

- the length of its name (u32) and the name
- the number of dimensions (u32) and the sizes (i64 each)
- the type (u8)
- the number of bytes (u64) and the values in row-major order

There is no alignment and no checksum.
"""

from __future__ import annotations

import math
from typing import IO

import torch

from flodl.checkpoint.container import (
    FORMAT,
    Container,
    Entry,
    Header,
    append_exactly,
    read_exactly,
)
from flodl.checkpoint.header import PREFIX_BYTES, is_shape
from flodl.errors import CheckpointError

MAGIC = b"FDLC"
VERSIONS = (1, 2)

_HASH_BYTES = 32
_ALIGNMENT = 8  # the widest item; in the file tensors are not aligned
_CHUNK = 1 << 16
_DTYPES = {
    1: torch.float16,
    2: torch.bfloat16,
    3: torch.float32,
    4: torch.float64,
    5: torch.int32,
    6: torch.int64,
}


def read_legacy(
    stream: IO[bytes], prefix: bytes, where: str, *, header_only: bool = False
) -> Container:
    """Read a whole file; the tensors are aligned in one buffer.

    Args:
        stream: A binary stream after the first eight bytes of a (decompressed) file.
        prefix: Those bytes, the first four of them ``FDLC``.
        where: The file, for messages.
        header_only: Check everything but keep no values. The whole file is still read, because the
            names are between the tensors.

    Raises:
        CheckpointError: The file is truncated, damaged or of an unknown version.
    """
    if len(prefix) < PREFIX_BYTES:
        raise CheckpointError(f"{where} is truncated: it ends within its first bytes")
    version = int.from_bytes(prefix[len(MAGIC) :], "little")
    if version not in VERSIONS:
        raise CheckpointError(f"{where} has the unknown binary version {version}: it is damaged")
    digest = read_exactly(stream, _HASH_BYTES, where)
    body = bytearray()
    entries: dict[str, Entry] = {}
    for _ in range(_number(stream, 4, where)):
        entry = _read_entry(stream, len(body), where)
        if entry.name in entries:
            raise CheckpointError(f"{where} is damaged: it holds {entry.name!r} twice")
        entries[entry.name] = entry
        size = entry.end - entry.begin
        if header_only:
            _skip(stream, size, where)
        else:
            body += bytes(entry.begin - len(body))
            append_exactly(body, stream, size, where)
    if stream.read(1):
        raise CheckpointError(f"{where} has data after its last tensor: it is damaged")
    metadata = {
        "format": FORMAT,
        "fdl_version": str(version),
        "structural_hash": digest.hex() if any(digest) else "",
        "label": "",
    }
    stored = tuple(entries.values())
    return Container(Header(stored, stored, metadata, {}), body, 0)


def _read_entry(stream: IO[bytes], position: int, where: str) -> Entry:
    """Read the fields before a tensor's values; the entry's range is that in the new buffer."""
    raw_name = read_exactly(stream, _number(stream, 4, where), where)
    try:
        name = raw_name.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{where} is damaged: a tensor's name is not text: {error}") from None
    dimensions = _number(stream, 4, where)
    raw_shape = read_exactly(stream, 8 * dimensions, where)
    shape = tuple(
        int.from_bytes(raw_shape[start : start + 8], "little", signed=True)
        for start in range(0, len(raw_shape), 8)
    )
    code = _number(stream, 1, where)
    size = _number(stream, 8, where)
    dtype = _DTYPES.get(code)
    if dtype is None:
        raise CheckpointError(f"{where} is damaged: tensor {name!r} has an unknown type {code}")
    sound = all(length >= 0 for length in shape) and is_shape(shape)
    if not sound or math.prod(shape) * dtype.itemsize != size:
        raise CheckpointError(
            f"{where} is damaged: tensor {name!r} has {size} bytes, which do not fit its shape"
        )
    begin = position + -position % _ALIGNMENT
    return Entry(name, dtype, shape, begin, begin + size)


def _number(stream: IO[bytes], width: int, where: str) -> int:
    return int.from_bytes(read_exactly(stream, width, where), "little")


def _skip(stream: IO[bytes], size: int, where: str) -> None:
    while size:
        chunk = stream.read(min(size, _CHUNK))
        if not chunk:
            raise CheckpointError(f"{where} is truncated: {size} bytes are missing")
        size -= len(chunk)
