"""The IDX format: a big-endian header of sizes, then unsigned bytes.

Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits", file formats.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import zlib
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from flodl.errors import DataError

_UNSIGNED_BYTE = 0x08
_GZIP_MAGIC = b"\x1f\x8b"
_PIECE = 1 << 22


def magic_number(dimensions: int) -> int:
    """First four bytes of an IDX file of unsigned bytes: 2049 for one dimension, 2051 for three."""
    return (_UNSIGNED_BYTE << 8) | dimensions


def read_idx(source: bytes | str | os.PathLike[str], *, dimensions: int, what: str) -> Tensor:
    """Read an IDX file of unsigned bytes, plain or compressed with gzip.

    Args:
        source: The content, or the path of a file.
        dimensions: Number of dimensions that the file must have.
        what: What the file holds ("images"), for messages.

    Returns:
        The values, uint8, in the shape that the header states.

    Raises:
        DataError: The file cannot be read, has another format, or is cut short.
    """
    name = what if isinstance(source, bytes) else f"{what} ({Path(source)})"
    try:
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
        with io.BytesIO(content) as raw:
            if content.startswith(_GZIP_MAGIC):
                with gzip.open(raw) as stream:
                    return _parse(stream, dimensions, name)
            return _parse(raw, dimensions, name)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name}: cannot be read: {error}") from error


def _parse(stream: IO[bytes] | gzip.GzipFile, dimensions: int, name: str) -> Tensor:
    header_size = 4 * (1 + dimensions)
    header = stream.read(header_size)
    expected = magic_number(dimensions)
    if len(header) >= 4:
        magic = int.from_bytes(header[:4], "big")
        if magic != expected:
            swapped = magic in (magic_number(1), magic_number(3))
            raise DataError(
                f"{name}: magic number {magic}, expected {expected} (unsigned bytes, "
                f"{dimensions} dimension{'s' if dimensions > 1 else ''}); "
                + ("are images and labels swapped?" if swapped else "this is another kind of file")
            )
    if len(header) < header_size:
        raise DataError(
            f"{name}: {len(header)} bytes, the header alone has {header_size}; the file is cut "
            "short, fetch it again"
        )
    shape = struct.unpack(f">{dimensions}I", header[4:])
    size = math.prod(shape)
    body = _read_up_to(stream, size + 1)
    if len(body) != size:
        found = f"more than {size:,}" if len(body) > size else f"only {len(body):,}"
        raise DataError(
            f"{name}: the header promises {'×'.join(map(str, shape))} = {size:,} bytes and there "
            f"are {found}; fetch the file again"
        )
    flat = (
        torch.frombuffer(body, dtype=torch.uint8)
        if body
        else torch.empty(0, dtype=torch.uint8, device="cpu")
    )
    return flat.reshape(shape)


def _read_up_to(stream: IO[bytes] | gzip.GzipFile, size: int) -> bytearray:
    """Read at most ``size`` bytes, in pieces, because a damaged header may state a huge size."""
    body = bytearray()
    while len(body) < size and (piece := stream.read(min(_PIECE, size - len(body)))):
        body += piece
    return body
