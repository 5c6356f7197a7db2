"""Additive attention masks, for code that computes attention itself."""

from __future__ import annotations

import torch
from torch import Tensor

_HIDDEN = -1e4


def build_extended_attention_mask(attention_mask: Tensor) -> Tensor:
    """The tensor to add to scores so that padding gets no attention.

    Args:
        attention_mask: ``[B, S]``, 0 for padding.

    Returns:
        Float32 ``[B, 1, 1, S]``: 0, and -10000 for padding.

    Raises:
        ValueError: The mask has another shape.
    """
    counts = _counts(attention_mask)
    hidden = torch.full(counts.shape, _HIDDEN, device=counts.device)
    return hidden.masked_fill(counts, 0.0)[:, None, None, :]


def build_deberta_attention_mask(attention_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The same for DeBERTa, where padding gets no attention and gives none.

    Args:
        attention_mask: ``[B, S]``, 0 for padding.
        dtype: Of the result, a floating-point type.

    Returns:
        ``[B, 1, S, S]``: 0 where both tokens count, the lowest number of ``dtype`` elsewhere.

    Raises:
        ValueError: The mask has another shape.
    """
    counts = _counts(attention_mask)
    both = counts[:, None, :, None] & counts[:, None, None, :]
    hidden = torch.full(both.shape, torch.finfo(dtype).min, dtype=dtype, device=counts.device)
    return hidden.masked_fill(both, 0.0)


def _counts(attention_mask: Tensor) -> Tensor:
    if attention_mask.dim() != 2:
        raise ValueError(
            f"an attention mask is [B, S], 0 for padding, not {list(attention_mask.shape)}"
        )
    return attention_mask != 0
