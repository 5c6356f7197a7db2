"""Dropout with cheap random numbers on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_STEPS = 1 << 16
"""Probabilities are multiples of its inverse: one 64-bit number decides for four values."""

_FEW = 1 << 10


def dropout(values: Tensor, p: float, training: bool) -> Tensor:
    """Set values to zero with a probability and scale up the others (Srivastava et al., 2014).

    On the CPU torch draws a number for every value, which takes as long as multiplying the values
    with a small matrix. Here ``p`` is rounded to 16 bits. The other values are scaled by the
    rounded probability, so the expected sum stays the same.

    Args:
        values: A tensor of any shape.
        p: The probability, 0 … 1.
        training: Whether dropout is active.
    """
    zeros = round(p * _STEPS)
    if (
        not training
        or values.device.type != "cpu"
        or torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or not 0 < zeros < _STEPS
        or values.numel() < _FEW
    ):
        return functional.dropout(values, p, training)
    words = torch.empty((values.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    parts = words.view(torch.int16)[: values.numel()].view(values.shape)
    kept = (parts >= zeros - _STEPS // 2).to(values.dtype)
    return values * kept.mul_(_STEPS / (_STEPS - zeros))
