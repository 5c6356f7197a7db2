"""PNG files, written with zlib alone."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}
_UP = 2


def encode_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return a PNG file with 8 bits per channel.

    Args:
        pixels: Shape ``[height, width, channels]`` with 1 (grey), 2 (grey and opacity), 3 (red,
            green, blue) or 4 channels (and opacity).
    """
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    rows = np.ascontiguousarray(pixels).reshape(height, width * channels)
    # Filter "up": each byte as its difference to the byte above, which deflates much better.
    lines = np.empty((height, 1 + width * channels), np.uint8)
    lines[:, 0] = _UP
    lines[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=lines[1:, 1:])
    body = zlib.compress(lines.tobytes(), 6)
    return b"".join(
        [_SIGNATURE, _chunk(b"IHDR", header), _chunk(b"IDAT", body), _chunk(b"IEND", b"")]
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
