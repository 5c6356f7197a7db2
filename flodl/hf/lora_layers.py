"""Linear layers with a low-rank change.

LoRA (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021) adds a low-rank change
to a weight: ``W + scaling · B A``. Parameters have the names that they have in adapter files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from flodl.hf.families.albert import FlatPooler


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """How one layer is adapted.

    Attributes:
        r: Rank of the change, 1 or more.
        alpha: The change is multiplied by ``alpha / r``.
        dropout: Probability of zeroing an input of the change during training.
        use_rslora: Multiply the change by ``alpha / √r`` instead (Kalajdzievski, "A Rank
            Stabilization Scaling Factor for Fine-Tuning with LoRA", 2023).

    Raises:
        ValueError: A value is out of range.
    """

    r: int = 8
    alpha: float = 16
    dropout: float = 0.0
    use_rslora: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.r, bool) or not isinstance(self.r, int) or self.r < 1:
            raise ValueError(f"r={self.r!r}: the rank is a whole number of at least 1")
        if not math.isfinite(self.alpha):
            raise ValueError(f"alpha={self.alpha!r}: it must be finite")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout={self.dropout!r}: it must be at least 0 and below 1")

    @property
    def scaling(self) -> float:
        """The factor of the change."""
        return self.alpha / (math.sqrt(self.r) if self.use_rslora else self.r)


class LoraLinear(nn.Linear):
    """A linear layer with a low-rank change; :meth:`adapt` makes it from an existing layer.

    ``weight`` and ``bias`` keep their names in the state dict; ``lora_A [r, in]`` and
    ``lora_B [out, r]`` are added.
    """

    lora: LoraSettings
    lora_A: nn.Parameter  # noqa: N815 - the name in every adapter file
    lora_B: nn.Parameter  # noqa: N815

    @staticmethod
    def adapt(linear: nn.Linear, settings: LoraSettings) -> LoraLinear:
        """Turn a layer into an adapted one, in place.

        The object stays the same, so references to it and its hooks still work. A is drawn like the
        weight of a new layer (He et al. 2015, uniform, gain of a leaky ReLU with slope √5). B is
        zero. Both have the dtype of the weight, or float32 if the weight has half precision.

        Raises:
            TypeError: It is a subclass of ``nn.Linear``, whose own behaviour would be lost.
        """
        if type(linear) is not nn.Linear:
            raise TypeError(f"LoRA adapts torch.nn.Linear, not {type(linear).__name__}")
        return become(linear, settings, *fresh_change(linear, settings))

    def set_change(self, settings: LoraSettings, a: Tensor, b: Tensor) -> None:
        """Replace the change by a copy of another one.

        Args:
            settings: Of the new change.
            a: ``[r, in]``.
            b: ``[out, r]``.
        """
        assign_change(self, settings, a, b)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer and its change.

        Args:
            x: ``[..., in]``.

        Returns:
            ``[..., out]``, in the dtype of the unchanged layer's output.
        """
        plain = F.linear(x, self.weight, self.bias)
        dropped = F.dropout(x.to(self.lora_A.dtype), self.lora.dropout, self.training)
        change = F.linear(F.linear(dropped, self.lora_A), self.lora_B) * self.lora.scaling
        return (plain + change).to(plain.dtype)

    def change(self) -> Tensor:
        """The low-rank change of the weight, ``[out, in]``, at least in float32."""
        return self.lora.scaling * (self.lora_B.detach() @ self.lora_A.detach())

    def merged(self) -> Tensor:
        """The weight with its change, ``[out, in]``."""
        return (self.weight.detach() + self.change()).to(self.weight.dtype)

    def extra_repr(self) -> str:
        """The sizes and the settings."""
        told = ["use_rslora"] if self.lora.use_rslora else []
        told = [f"r={self.lora.r}", f"alpha={self.lora.alpha}", *told]
        return f"{super().extra_repr()}, {', '.join(told)}"


class _LoraFlatPooler(LoraLinear):
    """The pooler of ALBERT with a change."""

    def forward(self, x: Tensor) -> Tensor:
        """``[B, S, H]`` to ``[B, H]``."""
        return super().forward(x[:, 0]).tanh()


KINDS: dict[type[nn.Module], type[LoraLinear]] = {
    nn.Linear: LoraLinear,
    FlatPooler: _LoraFlatPooler,
}
"""A kind of layer -> the same kind with a change."""

PARTS = ("lora_A", "lora_B")
"""The parameters of a change."""


def fresh_change(layer: nn.Linear, settings: LoraSettings) -> tuple[Tensor, Tensor]:
    """A and B of a new change, which adds zero at first."""
    weight = layer.weight
    wide = torch.promote_types(weight.dtype, torch.float32)
    a = torch.empty((settings.r, layer.in_features), dtype=wide, device=weight.device)
    nn.init.kaiming_uniform_(a, a=math.sqrt(5))
    b = torch.zeros((layer.out_features, settings.r), dtype=wide, device=weight.device)
    return a, b


def become(layer: nn.Linear, settings: LoraSettings, a: Tensor, b: Tensor) -> LoraLinear:
    """Give a layer a change, in place: it becomes an adapted layer; A and B are not copied."""
    if not isinstance(layer, LoraLinear):
        layer.__class__ = KINDS[type(layer)]
    adapted = cast("LoraLinear", layer)
    adapted.lora = settings
    adapted.lora_A, adapted.lora_B = nn.Parameter(a), nn.Parameter(b)
    return adapted


def assign_change(layer: nn.Linear, settings: LoraSettings, a: Tensor, b: Tensor) -> None:
    """Give a layer a copy of a change, on its device and at least in float32, in place."""
    dtype = torch.promote_types(layer.weight.dtype, torch.float32)
    own = (one.detach().to(layer.weight.device, dtype, copy=True) for one in (a, b))
    become(layer, settings, *own)
