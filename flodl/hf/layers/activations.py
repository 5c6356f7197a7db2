"""The activation functions a configuration can name, and dropout.

Several names are approximations of one function, the Gaussian error linear unit ``x·Φ(x)``
(https://arxiv.org/abs/1606.08415). They are kept apart: after twelve layers the exact form and the
tanh form differ by about 1e-2, and a checkpoint fits only the form that it was trained with.

Functions that are defined as several steps run in torch's fused form in float32 and float64. There
the two differ by at most 3e-7, and the fused form takes a quarter of the time. In shorter types
every step rounds, so exactly the defined steps are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody gives it
from torch import Tensor
from torch.nn import functional

Activation = Callable[[Tensor], Tensor]

_CUBIC: Final = 0.044715
_SQRT_2_OVER_PI: Final = math.sqrt(2.0 / math.pi)
_SQRT_2_OVER_PI_SHORT: Final = 0.7978845608  # gelu_fast is defined with this many digits


def _fuses(x: Tensor) -> bool:
    return x.dtype in (torch.float32, torch.float64)


def _gelu_python(x: Tensor) -> Tensor:
    if _fuses(x):
        return F.gelu(x)
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def _gelu_new(x: Tensor) -> Tensor:
    if _fuses(x):
        return F.gelu(x, approximate="tanh")
    return 0.5 * x * (1.0 + torch.tanh(_SQRT_2_OVER_PI * (x + _CUBIC * torch.pow(x, 3.0))))


def _gelu_fast(x: Tensor) -> Tensor:
    if _fuses(x):
        return F.gelu(x, approximate="tanh")
    return 0.5 * x * (1.0 + torch.tanh(x * _SQRT_2_OVER_PI_SHORT * (1.0 + _CUBIC * x * x)))


def _gelu_10(x: Tensor) -> Tensor:
    return torch.clip(F.gelu(x), -10.0, 10.0)


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _relu2(x: Tensor) -> Tensor:
    return torch.square(F.relu(x))


def _linear(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "gelu": F.gelu,
    "gelu_python": _gelu_python,
    "gelu_new": _gelu_new,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_python_tanh": _gelu_new,
    "gelu_fast": _gelu_fast,
    "gelu_accurate": _gelu_new,
    "gelu_10": _gelu_10,
    "quick_gelu": _quick_gelu,
    "relu": F.relu,
    "relu2": _relu2,
    "relu6": F.relu6,
    "silu": F.silu,
    "swish": F.silu,
    "mish": F.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "linear": _linear,
}
"""The functions by name, as a configuration spells them (case matters).

They keep shape and dtype and change no tensor in place.
"""


# --- Dropout ---------------------------------------------------------------------------------


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
