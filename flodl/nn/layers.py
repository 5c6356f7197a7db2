"""Layers that torch.nn lacks: a self-attention of one input, and a Gaussian blur."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor, nn


def gaussian_blur_2d(x: Tensor, sigma: float) -> Tensor:
    """Blur every channel of a batch of images with a Gaussian.

    The kernel covers three standard deviations to each side, 2⌈3σ⌉ + 1 pixels, and sums to one.
    It runs over columns, then over rows. Pixels outside the image count as zero, so borders
    darken. No gradient flows through.

    Args:
        x: Images ``[B, C, H, W]`` of a floating dtype.
        sigma: Standard deviation in pixels.

    Returns:
        Images of the same shape and dtype.

    Raises:
        ValueError: ``sigma`` is not positive, or ``x`` is not a batch of floating-point images.
    """
    _check_sigma(sigma)
    if x.dim() != 4 or not x.is_floating_point():
        raise ValueError(
            f"x must be floating images [B, C, H, W], got shape {list(x.shape)} of {x.dtype}"
        )
    with torch.no_grad():
        channels = x.shape[1]
        radius = math.ceil(3 * sigma)
        # Half precision cannot hold a sum of small exponentials.
        precise = torch.promote_types(x.dtype, torch.float32)
        weights = _kernel(sigma, radius, precise, x.device).to(x.dtype)
        across = weights.expand(channels, 1, 1, -1)
        blurred = F.conv2d(x, across, padding=(0, radius), groups=channels)
        return F.conv2d(blurred, across.mT, padding=(radius, 0), groups=channels)


class GaussianBlur(nn.Module):
    """:func:`gaussian_blur_2d` as a module.

    Args:
        sigma: Standard deviation in pixels.

    Raises:
        ValueError: ``sigma`` is not a positive number.
    """

    def __init__(self, sigma: float) -> None:
        super().__init__()
        _check_sigma(sigma)
        self.sigma = float(sigma)

    def forward(self, x: Tensor) -> Tensor:
        """Blur images ``[B, C, H, W]``."""
        return gaussian_blur_2d(x, self.sigma)

    def extra_repr(self) -> str:
        """The standard deviation."""
        return f"sigma={self.sigma:g}"


def _kernel(sigma: float, radius: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    offsets = torch.arange(-radius, radius + 1, dtype=dtype, device=device)
    weights = torch.exp(-0.5 * (offsets / sigma) ** 2)
    return weights / weights.sum()


def _check_sigma(sigma: float) -> None:
    # Older compilers of torch cannot trace a union of types.
    if not isinstance(sigma, (int, float)) or not 0 < sigma < math.inf:
        raise ValueError(f"sigma must be a positive number of pixels, got {sigma!r}")


class SelfAttention(nn.Module):
    """Multi-head scaled dot-product attention of a sequence to itself (Vaswani et al., 2017).

    ``torch.nn.MultiheadAttention`` takes query, key and value and also returns attention weights.
    This layer takes one batch of sequences and returns one.

    Args:
        embed: Width E of every position.
        heads: Number of heads; E must be a multiple of it.

    Raises:
        ValueError: A size is not a positive integer, or ``embed`` is not a multiple of ``heads``.
    """

    def __init__(self, embed: int, heads: int) -> None:
        super().__init__()
        for name, size in (("embed", embed), ("heads", heads)):
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {size!r}")
        if embed % heads:
            raise ValueError(f"embed must be a multiple of heads, got {embed} and {heads}")
        self.attention = nn.MultiheadAttention(embed, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Attend from every position of ``[B, T, E]`` to all positions; keeps the shape."""
        attended: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return attended

    def extra_repr(self) -> str:
        """Width and heads."""
        return f"embed={self.attention.embed_dim}, heads={self.attention.num_heads}"
