"""Conversion of pixel bytes to the values that a network reads."""

from __future__ import annotations

import torch
from torch import Tensor


def pixel_values(pixels: Tensor, brightest: int, dtype: torch.dtype) -> Tensor:
    """Scale pixels to 0…1, or keep the bytes.

    Args:
        pixels: uint8.
        brightest: The value that becomes 1.
        dtype: A floating dtype, or uint8 to keep the bytes.

    Raises:
        ValueError: Another dtype.
    """
    if dtype == torch.uint8:
        return pixels.contiguous()
    if not dtype.is_floating_point:
        raise ValueError(f"dtype={dtype}: choose a floating one, or torch.uint8 for the bytes")
    return pixels.to(dtype).div_(brightest)
