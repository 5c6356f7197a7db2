"""From the images that people have to PNG files."""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from flodl.monitor.media.captured import Captured
from flodl.monitor.media.records import Image

Pixels: TypeAlias = npt.NDArray[np.uint8]

MOST_IMAGES = 64
"""Images of a batch that are shown; further ones are left out."""

MOST_PIXELS = 16 * 2**20
_GAP = 2
_CHANNELS = (1, 3, 4)
_SHAPES = (
    "pass a tensor (C,H,W), (H,W) or (N,C,H,W), an array (H,W), (H,W,C) or (N,H,W,C) with 1, 3 or "
    "4 channels, or an image of Pillow"
)


@final
class CapturedImage:
    """One image or a batch of images, copied and checked at once, encoded later.

    Args:
        value: See :meth:`Monitor.image`.

    Raises:
        ValueError: The shape or the dtype is not that of an image; the message names it.
    """

    def __init__(self, value: Any) -> None:
        self._captured = captured = Captured(_first_images(value))
        self._axes = _axes(captured)
        self.clamped: tuple[float, float] | None = None
        """Smallest and largest value after :meth:`encode`, if some were outside of [0, 1]."""
        if not (captured.is_floating or captured.dtype in ("uint8", "bool")):
            raise ValueError(
                f"an image of dtype {captured.dtype} with shape {list(captured.shape)}: pass "
                "floating-point values in [0, 1], uint8 or bool"
            )
        if math.prod(captured.shape) > 4 * MOST_PIXELS or not math.prod(captured.shape):
            raise ValueError(
                f"an image of shape {list(captured.shape)}: it must have 1 to {MOST_PIXELS} pixels"
            )

    @property
    def bytes(self) -> int:
        """Memory of the copy."""
        return self._captured.bytes

    def encode(self) -> Image:
        """Return the image, or a grid of the images, as a PNG file."""
        batch = self._eight_bit(self._captured.array().transpose(self._axes))
        if batch.ndim == 2:
            batch = batch[:, :, None]
        if batch.ndim == 3:
            batch = batch[None]
        grid = _grid(batch)
        height, width, channels = grid.shape
        return Image(encode_png(grid), width, height, channels, len(batch))

    def _eight_bit(self, values: npt.NDArray[Any]) -> Pixels:
        if values.dtype == np.uint8:
            return np.asarray(values)
        if values.dtype == np.bool_:
            return values.astype(np.uint8) * np.uint8(255)
        values = values.astype(np.float32)
        finite = values[np.isfinite(values)]
        if finite.size and (finite.min() < 0 or finite.max() > 1):
            self.clamped = float(finite.min()), float(finite.max())
        known = np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=0.0)
        return np.asarray(np.clip(known, 0, 1) * 255 + 0.5, np.uint8)


def _first_images(value: Any) -> Any:
    """Leave out what a grid does not show before it is copied."""
    shape: tuple[int, ...] = tuple(getattr(value, "shape", ()))
    return value[:MOST_IMAGES] if len(shape) == 4 and shape[0] > MOST_IMAGES else value


def _axes(captured: Captured) -> tuple[int, ...]:
    """Return the order of axes that makes (H,W), (H,W,C) or (N,H,W,C) of the shape."""
    shape = captured.shape
    if len(shape) == 2:
        return 0, 1
    if len(shape) in (3, 4):
        batch = tuple(range(len(shape) - 3))
        row = len(batch)
        if not captured.is_tensor and shape[-1] in _CHANNELS:
            return (*batch, row, row + 1, row + 2)
        if shape[row] in _CHANNELS:
            return (*batch, row + 1, row + 2, row)
        if captured.is_tensor and shape[-1] in _CHANNELS:
            order = ", ".join(map(str, (*batch, row + 2, row, row + 1)))
            raise ValueError(
                f"a tensor of shape {list(shape)} has its channels last; pass .permute({order})"
            )
    raise ValueError(f"an image of shape {list(shape)}: {_SHAPES}")


def _grid(batch: Pixels) -> Pixels:
    """Return images of shape ``[N, H, W, C]`` side by side, in about a square."""
    count, height, width, channels = batch.shape
    if count == 1:
        return np.asarray(batch[0])
    across = max(1, min(count, round(math.sqrt(count * height / width))))
    down = -(-count // across)
    size = down * (height + _GAP) - _GAP, across * (width + _GAP) - _GAP, channels
    grid = np.zeros(size, np.uint8)
    for index, one in enumerate(batch):
        top, left = index // across * (height + _GAP), index % across * (width + _GAP)
        grid[top : top + height, left : left + width] = one
    return grid


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
