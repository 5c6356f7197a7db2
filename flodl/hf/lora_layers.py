"""Layers with a low-rank change: linear layers and embeddings, by LoRA or DoRA.

LoRA (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021) adds a low-rank change
to a weight: ``W + scaling · B A``. DoRA (Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation",
2024) also trains the magnitude: the length of each row of a linear layer's weight, or of each
column of an embedding's table. Parameters have the names that they have in adapter files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from flodl.hf.models.backbone import FlatPooler

if TYPE_CHECKING:
    from typing import TypeAlias

    Adapted: TypeAlias = "LoraLinear | LoraEmbedding"


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """How one layer is adapted.

    Attributes:
        r: Rank of the change, 1 or more.
        alpha: The change is multiplied by ``alpha / r``.
        dropout: Probability of zeroing an input of the change during training. An embedding has no
            such dropout, as in PEFT.
        use_rslora: Multiply the change by ``alpha / √r`` instead (Kalajdzievski, "A Rank
            Stabilization Scaling Factor for Fine-Tuning with LoRA", 2023).
        use_dora: Train the magnitude of the weight too (DoRA).

    Raises:
        ValueError: A value is out of range.
    """

    r: int = 8
    alpha: float = 16
    dropout: float = 0.0
    use_rslora: bool = False
    use_dora: bool = False

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


@dataclass(frozen=True, slots=True)
class Change:
    """The tensors of one change.

    Attributes:
        a: ``[r, in]``.
        b: ``[out, r]``.
        magnitude: ``[out]`` with DoRA, else None.
    """

    a: Tensor
    b: Tensor
    magnitude: Tensor | None = None


class LoraLinear(nn.Linear):
    """A linear layer with a low-rank change; :meth:`adapt` makes it from an existing layer.

    ``weight`` and ``bias`` keep their names in the state dict; ``lora_A [r, in]`` and
    ``lora_B [out, r]`` are added, with DoRA also ``lora_magnitude_vector [out]``.
    """

    lora: LoraSettings
    lora_A: nn.Parameter  # noqa: N815 - the name in every adapter file
    lora_B: nn.Parameter  # noqa: N815
    lora_magnitude_vector: nn.Parameter

    NAMES = ("lora_A", "lora_B")
    """The parameters A and B of the change."""

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
        return cast("LoraLinear", become(linear, settings, fresh_change(linear, settings)))

    def set_change(
        self, settings: LoraSettings, a: Tensor, b: Tensor, magnitude: Tensor | None = None
    ) -> None:
        """Replace the change.

        Args:
            settings: Of the new change.
            a: ``[r, in]``.
            b: ``[out, r]``.
            magnitude: ``[out]``; with DoRA, None for the lengths of the rows of the new weight.
        """
        assign_change(self, settings, Change(a, b, magnitude))

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
        if self.lora.use_dora:
            factor = _factor(self)
            change = (factor - 1) * self._unbiased(plain, dropped) + factor * change
        return (plain + change).to(plain.dtype)

    def _unbiased(self, plain: Tensor, dropped: Tensor) -> Tensor:
        """The output without the bias: of the dropped input during training, as PEFT has it."""
        if self.training and self.lora.dropout > 0:
            return F.linear(dropped, self.weight.to(dropped.dtype))
        wide = plain.to(dropped.dtype)
        return wide if self.bias is None else wide - self.bias

    def change(self) -> Tensor:
        """The low-rank change of the weight, ``[out, in]``, at least in float32."""
        return self.lora.scaling * (self.lora_B.detach() @ self.lora_A.detach())

    def lengths(self) -> Tensor:
        """The length of each row of the changed weight, ``[out]``, at least in float32."""
        return _lengths(self.weight.detach() + self.change(), dim=1)

    def merged(self) -> Tensor:
        """The weight with its change and magnitude, ``[out, in]``."""
        weight = self.weight.detach() + self.change()
        if self.lora.use_dora:
            weight = _factor(self).detach()[:, None] * weight
        return weight.to(self.weight.dtype)

    def extra_repr(self) -> str:
        """The sizes and the settings."""
        return f"{super().extra_repr()}, {_told(self.lora)}"


class LoraEmbedding(nn.Embedding):
    """An embedding with a low-rank change of its table; :meth:`adapt` makes it from an embedding.

    ``weight [V, E]`` keeps its name in the state dict; ``lora_embedding_A [r, V]`` and
    ``lora_embedding_B [E, r]`` are added, with DoRA also ``lora_magnitude_vector [E]``.
    """

    lora: LoraSettings
    lora_embedding_A: nn.Parameter  # noqa: N815 - the name in every adapter file
    lora_embedding_B: nn.Parameter  # noqa: N815
    lora_magnitude_vector: nn.Parameter

    NAMES = ("lora_embedding_A", "lora_embedding_B")
    """The parameters A and B of the change."""

    @staticmethod
    def adapt(embedding: nn.Embedding, settings: LoraSettings) -> LoraEmbedding:
        """Turn an embedding into an adapted one, in place.

        A is zero and B is drawn like the table of a new embedding. Their dtype is that of the
        table, or float32 if the table has half precision.

        Raises:
            TypeError: It is a subclass of ``nn.Embedding``, or one that changes its table itself.
        """
        if type(embedding) is not nn.Embedding:
            raise TypeError(f"LoRA adapts torch.nn.Embedding, not {type(embedding).__name__}")
        if embedding.max_norm is not None or embedding.sparse:
            raise TypeError("LoRA adapts no embedding with max_norm or sparse gradients")
        return cast("LoraEmbedding", become(embedding, settings, fresh_change(embedding, settings)))

    def set_change(
        self, settings: LoraSettings, a: Tensor, b: Tensor, magnitude: Tensor | None = None
    ) -> None:
        """Replace the change.

        Args:
            settings: Of the new change.
            a: ``[r, V]``.
            b: ``[E, r]``.
            magnitude: ``[E]``; with DoRA, None for the lengths of the columns of the new table.
        """
        assign_change(self, settings, Change(a, b, magnitude))

    def forward(self, input: Tensor) -> Tensor:
        """Look up vectors of the changed table.

        Args:
            input: Ids, ``[...]``.

        Returns:
            ``[..., E]``, in the dtype of the table.
        """
        plain = super().forward(input)
        found = F.embedding(
            input,
            self.lora_embedding_A.T,
            self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
        )
        whole = plain + F.linear(found, self.lora_embedding_B) * self.lora.scaling
        if self.lora.use_dora:
            whole = _factor(self) * whole
        return whole.to(plain.dtype)

    def change(self) -> Tensor:
        """The low-rank change of the table, ``[V, E]``, at least in float32."""
        a, b = self.lora_embedding_A.detach(), self.lora_embedding_B.detach()
        return self.lora.scaling * (b @ a).T

    def lengths(self) -> Tensor:
        """The length of each column of the changed table, ``[E]``, at least in float32."""
        return _lengths(self.weight.detach() + self.change(), dim=0)

    def merged(self) -> Tensor:
        """The table with its change and magnitude, ``[V, E]``."""
        weight = self.weight.detach() + self.change()
        if self.lora.use_dora:
            weight = _factor(self).detach() * weight
        return weight.to(self.weight.dtype)

    def extra_repr(self) -> str:
        """The sizes and the settings."""
        return f"{super().extra_repr()}, {_told(self.lora)}"


class _LoraFlatPooler(LoraLinear):
    """The pooler of ALBERT with a change."""

    def forward(self, x: Tensor) -> Tensor:
        """``[B, S, H]`` to ``[B, H]``."""
        return super().forward(x[:, 0]).tanh()


KINDS: dict[type[nn.Module], type[LoraLinear] | type[LoraEmbedding]] = {
    nn.Linear: LoraLinear,
    nn.Embedding: LoraEmbedding,
    FlatPooler: _LoraFlatPooler,
}
"""A kind of layer -> the same kind with a change."""

MAGNITUDE = "lora_magnitude_vector"
"""The parameter that DoRA adds."""


def is_adapted_kind(module: nn.Module) -> bool:
    """Whether a layer has a change that is not merged."""
    return isinstance(module, LoraLinear | LoraEmbedding)


def parts_of(layer: Adapted) -> list[str]:
    """The names of the parameters of a layer's change: A, B, and with DoRA the magnitude."""
    return [*layer.NAMES, *([MAGNITUDE] if layer.lora.use_dora else [])]


def shapes(layer: nn.Module, rank: int) -> tuple[tuple[int, int], tuple[int, int], tuple[int]]:
    """The shapes of A, B and the magnitude for a layer.

    Args:
        layer: A linear layer or an embedding, adapted or not.
        rank: Rank of the change.
    """
    if isinstance(layer, nn.Embedding):
        wide, out = layer.num_embeddings, layer.embedding_dim
    else:
        linear = cast("nn.Linear", layer)
        wide, out = linear.in_features, linear.out_features
    return (rank, wide), (out, rank), (out,)


def fresh_change(layer: nn.Module, settings: LoraSettings) -> Change:
    """The tensors of a new change, which adds zero at first.

    Args:
        layer: A linear layer or an embedding.
        settings: Of the change.
    """
    weight = cast("Tensor", layer.weight)
    wide = torch.promote_types(weight.dtype, torch.float32)
    shape_a, shape_b, _ = shapes(layer, settings.r)
    a = torch.empty(shape_a, dtype=wide, device=weight.device)
    if isinstance(layer, nn.Embedding):
        b = torch.empty(shape_b, dtype=wide, device=weight.device)
        nn.init.normal_(b)
        nn.init.zeros_(a)
    else:
        nn.init.kaiming_uniform_(a, a=math.sqrt(5))
        b = torch.zeros(shape_b, dtype=wide, device=weight.device)
    return Change(a, b)


def become(layer: nn.Module, settings: LoraSettings, change: Change) -> Adapted:
    """Give a layer a change, in place: it becomes an adapted layer.

    Args:
        layer: A linear layer or an embedding.
        settings: Of the change.
        change: Its tensors, which become parameters without a copy.
    """
    adapted = cast("Adapted", layer)
    if not is_adapted_kind(layer):
        adapted.__class__ = KINDS[type(layer)]
    adapted._parameters.pop(MAGNITUDE, None)
    adapted.lora = settings
    for name, tensor in zip(adapted.NAMES, (change.a, change.b), strict=True):
        setattr(adapted, name, nn.Parameter(tensor))
    if settings.use_dora:
        lengths = adapted.lengths() if change.magnitude is None else change.magnitude
        adapted.lora_magnitude_vector = nn.Parameter(lengths)
    return adapted


def assign_change(layer: nn.Module, settings: LoraSettings, change: Change) -> Adapted:
    """Give a layer a copy of a change, on its device and at least in float32, in place.

    Args:
        layer: A linear layer or an embedding, adapted or not.
        settings: Of the change.
        change: Its tensors.
    """
    weight = cast("Tensor", layer.weight)
    dtype = torch.promote_types(weight.dtype, torch.float32)

    def own(tensor: Tensor) -> Tensor:
        return tensor.detach().to(weight.device, dtype, copy=True)

    magnitude = None if change.magnitude is None else own(change.magnitude)
    return become(layer, settings, Change(own(change.a), own(change.b), magnitude))


def _factor(layer: Adapted) -> Tensor:
    """The magnitude over the length of each direction; the length gets no gradient (DoRA, 4.3)."""
    factor: Tensor = layer.lora_magnitude_vector / layer.lengths()
    return factor


def _lengths(weight: Tensor, *, dim: int) -> Tensor:
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    # A direction of zeros stays zero instead of becoming NaN.
    length: Tensor = torch.linalg.vector_norm(wide, dim=dim)
    return length.clamp_min(torch.finfo(wide.dtype).tiny)


def _told(settings: LoraSettings) -> str:
    kinds = [name for name in ("use_rslora", "use_dora") if getattr(settings, name)]
    return ", ".join([f"r={settings.r}", f"alpha={settings.alpha}", *kinds])
