"""Images with labels, and the conversion of pixel bytes to the values that a network reads."""

from __future__ import annotations

import torch
from torch import Tensor

from flodl.data.dataset import TensorDataSet


class LabelledImages(TensorDataSet):
    """One image and one class per sample.

    Args:
        pixels: ``[N, channels, rows, columns]`` uint8, up to 255.
        labels: ``[N]`` of any integer dtype.
        dtype: Of the images: a floating dtype scales them to 0…1, uint8 keeps the bytes.

    Raises:
        ValueError: Another dtype.
    """

    def __init__(self, pixels: Tensor, labels: Tensor, dtype: torch.dtype) -> None:
        images = pixel_values(pixels, 255, dtype)
        super().__init__(images, labels.to(torch.int64), names=("image", "label"))

    @property
    def images(self) -> Tensor:
        """``[N, channels, rows, columns]``, float32 in 0…1 or uint8."""
        return self.tensors[0]

    @property
    def labels(self) -> Tensor:
        """``[N]`` int64."""
        return self.tensors[1]


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
