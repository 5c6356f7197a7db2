"""LoRA: train a low-rank change of linear layers while their weights stay fixed.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021: a layer ``y = x Wᵀ + b``
becomes ``y = x Wᵀ + b + (alpha / r) · x Aᵀ Bᵀ`` with ``A [r, in]`` and ``B [out, r]``. B starts at
zero, so the output does not change before the first step.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from flodl.errors import PathError, StateError
from flodl.graph.freezing import freeze_params, unfreeze_params
from flodl.graph.selection import Spot, places, segment_matcher, select

if TYPE_CHECKING:
    from flodl.graph.graph import Graph

_SAVED = "_saved_with_lora"
_FOLDED = "_folded_lora"
_LISTED = 12
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """How one layer is adapted.

    Attributes:
        r: Rank of the change, 1 or more.
        alpha: The change is multiplied by ``alpha / r``.
        dropout: Probability of zeroing an input of the change during training.

    Raises:
        ValueError: A value is out of range.
    """

    r: int = 8
    alpha: float = 16
    dropout: float = 0.0

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
        return self.alpha / self.r


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
        return _become(linear, settings, *_fresh_change(linear, settings))

    def set_change(self, settings: LoraSettings, a: Tensor, b: Tensor) -> None:
        """Replace the change.

        Args:
            settings: Of the new change.
            a: ``[r, in]``.
            b: ``[out, r]``.
        """
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        place = {"device": self.weight.device, "dtype": dtype}
        self.lora = settings
        self.lora_A = nn.Parameter(a.detach().to(**place, copy=True))  # type: ignore[call-overload]
        self.lora_B = nn.Parameter(b.detach().to(**place, copy=True))  # type: ignore[call-overload]

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
        """The change of the weight, ``[out, in]``, at least in float32."""
        return self.lora.scaling * (self.lora_B.detach() @ self.lora_A.detach())

    def extra_repr(self) -> str:
        """The sizes and the settings."""
        return f"{super().extra_repr()}, r={self.lora.r}, alpha={self.lora.alpha}"


def _fresh_change(linear: nn.Linear, settings: LoraSettings) -> tuple[nn.Parameter, nn.Parameter]:
    """A and B of a new change, which adds zero at first."""
    weight = linear.weight
    dtype = torch.promote_types(weight.dtype, torch.float32)
    a = torch.empty(settings.r, linear.in_features, dtype=dtype, device=weight.device)
    nn.init.kaiming_uniform_(a, a=math.sqrt(5))
    b = torch.zeros(linear.out_features, settings.r, dtype=dtype, device=weight.device)
    return nn.Parameter(a), nn.Parameter(b)


def _become(
    linear: nn.Linear, settings: LoraSettings, a: nn.Parameter, b: nn.Parameter
) -> LoraLinear:
    adapted = cast("LoraLinear", linear)
    adapted.__class__ = LoraLinear
    adapted.lora, adapted.lora_A, adapted.lora_B = settings, a, b
    return adapted


@dataclass(slots=True)
class _Folded:
    """What a merged layer needs to become an adapted one again; not part of the state dict."""

    settings: LoraSettings
    a: nn.Parameter
    b: nn.Parameter
    original: Tensor


def add_lora(
    graph: Graph,
    paths: str | Iterable[str],
    *,
    r: int = 8,
    alpha: float = 16,
    dropout: float = 0.0,
    train_head: bool = True,
) -> list[str]:
    """Adapt linear layers and freeze everything else.

    Make the optimizer afterwards, with ``graph.trainable_parameters()``.

    Args:
        graph: A model.
        paths: Paths of ``nn.Linear`` modules, or of modules that contain some. If no module has
            this path from the top, it is compared with the ends of all names. So ``"query"`` or
            ``"attention.self.query"`` means all layers of that name outside a trained head.
            Segments may be patterns, see :mod:`flodl.graph.selection`.
        r: Rank.
        alpha: The change is multiplied by ``alpha / r``.
        dropout: Dropout on the inputs of the change, during training.
        train_head: Train the whole head, and save it with the adapters. The encoder is the labelled
            graph inside ``graph``; the head is what stands on top of it. A head that shares
            parameters with the encoder, like that of a masked language model, is not trained. An
            encoder alone has no head.

    Returns:
        Names of the adapted layers, in the order of the model.

    Raises:
        PathError: A path leads to no ``nn.Linear``.
        ValueError: There are no paths, or a setting is out of range. Or a layer is adapted already,
            or belongs to the head that is trained as a whole. Or its weight is not a parameter of
            floats, or another module shares it.
    """
    settings = LoraSettings(r, alpha, dropout)
    named = [paths] if isinstance(paths, str) else list(paths)
    if not named:
        raise ValueError('there are no paths: name the layers to adapt, as ["query", "value"]')
    heads = heads_of(graph) if train_head else []
    chosen = _choose(graph, named, heads)
    _check_weights(chosen)
    _check_untied(graph, chosen)
    # Make all changes first: if memory runs out, the model stays as it was.
    changes = [_fresh_change(linear, settings) for linear in chosen.values()]
    for linear, change in zip(chosen.values(), changes, strict=True):
        _become(linear, settings, *change)
    train_adapters(graph, heads)
    return list(chosen)


def merge_lora(graph: Graph) -> None:
    """Add every change to its weight: the model is ordinary again, as fast as without LoRA.

    Layers are plain ``nn.Linear`` again, and the state dict has the names of the unadapted model.
    Each layer also keeps its change and its former weight for :func:`unmerge_lora`.

    Raises:
        StateError: No layer is adapted.
    """
    layers = [m for m in graph.modules() if isinstance(m, LoraLinear)]
    if not layers:
        raise StateError("no layer is adapted: call add_lora or load_lora first")
    for layer in layers:
        weight = layer.weight
        folded = _Folded(layer.lora, layer.lora_A, layer.lora_B, weight.detach().clone())
        with torch.no_grad():
            weight.copy_(weight + layer.change())
        del layer.lora_A, layer.lora_B, layer.lora
        plain = cast("nn.Linear", layer)
        plain.__class__ = nn.Linear
        setattr(plain, _FOLDED, folded)


def unmerge_lora(graph: Graph) -> None:
    """Undo :func:`merge_lora`: restore the former weights, bit for bit.

    Raises:
        StateError: No layer is merged.
    """
    layers = [module for module in graph.modules() if is_merged(module)]
    if not layers:
        raise StateError("no adapted layer is merged: call merge_lora first")
    for layer in layers:
        folded: _Folded = layer.__dict__.pop(_FOLDED)
        layer.__class__ = LoraLinear
        adapted = cast("LoraLinear", layer)
        with torch.no_grad():
            adapted.weight.copy_(folded.original)
        # The same parameter objects, for an optimizer that holds them. The model may have moved.
        for parameter in (folded.a, folded.b):
            parameter.data = parameter.data.to(adapted.weight.device)
        adapted.lora, adapted.lora_A, adapted.lora_B = folded.settings, folded.a, folded.b


def adapted_layers(graph: Graph) -> list[tuple[str, LoraLinear]]:
    """Names and modules of all adapted layers that are not merged, each once."""
    return [(name, m) for name, m in graph.named_modules() if isinstance(m, LoraLinear)]


def is_merged(module: nn.Module) -> bool:
    """Whether the change of a layer is added to its weight."""
    return _FOLDED in module.__dict__


def is_adapted(module: nn.Module) -> bool:
    """Whether a layer is adapted, merged or not."""
    return isinstance(module, LoraLinear) or is_merged(module)


def heads_of(graph: Graph) -> list[Spot]:
    """The modules on top of the encoder; none if one of them shares parameters with the encoder."""
    encoders = graph.tree_children().values()
    taken = {id(p) for encoder in encoders for p in encoder.parameters()}
    if not taken:
        return []
    heads = []
    for spot in places(graph):
        held = {id(p) for p in spot.module.parameters()}
        if spot.parent is not graph or not held or held <= taken:
            continue
        if held & taken:
            return []
        heads.append(spot)
    return heads


def saved_heads(graph: Graph) -> list[tuple[str, nn.Module]]:
    """Names and modules of the heads that are trained and saved with the adapters."""
    return [(name, m) for name, m in graph.named_modules() if _SAVED in m.__dict__]


def train_adapters(graph: Graph, heads: Iterable[Spot]) -> None:
    """Train the changes, the given heads and those of earlier calls; freeze everything else."""
    for head in heads:
        setattr(head.module, _SAVED, True)
    trained = [p for _, layer in adapted_layers(graph) for p in (layer.lora_A, layer.lora_B)]
    trained += [p for _, head in saved_heads(graph) for p in head.parameters()]
    kept = set(map(id, trained))
    freeze_params(p for p in graph.parameters() if id(p) not in kept)
    unfreeze_params(trained)


def _choose(graph: Graph, paths: list[str], heads: list[Spot]) -> dict[str, nn.Linear]:
    """The layers that the paths mean, by name, in the order of the model."""
    kinds = (nn.Linear, LoraLinear)
    linears = {spot.path: spot for spot in places(graph) if type(spot.module) in kinds}
    meant: set[int] = set()
    for path in paths:
        found = [
            linears[inner]
            for spot in select(graph, path)
            for inner in linears
            if _within(inner, spot)
        ]
        inside = [spot for spot in found if any(_within(spot.path, head) for head in heads)]
        if inside:
            raise ValueError(
                f"{path!r} leads to {inside[0].path!r}, which belongs to a head that is trained as "
                "a whole; pass train_head=False to adapt it instead"
            )
        if not found:
            found = [
                spot
                for spot in _ending(linears.values(), path)
                if not any(_within(spot.path, head) for head in heads)
            ]
        if not found:
            raise PathError(_no_linear(path, linears))
        meant.update(id(spot.module) for spot in found)
    chosen = {name: m for name, m in graph.named_modules() if id(m) in meant}
    again = [name for name, module in chosen.items() if is_adapted(module)]
    if again:
        raise ValueError(f"{again[0]!r} is adapted already")
    return cast("dict[str, nn.Linear]", chosen)


def _within(name: str, spot: Spot) -> bool:
    return not spot.path or name == spot.path or name.startswith(f"{spot.path}.")


def _ending(spots: Iterable[Spot], path: str) -> Iterator[Spot]:
    """The spots whose names end in these segments."""
    segments = [segment_matcher(text) for text in path.split(".")]
    for spot in spots:
        last = spot.path.split(".")[-len(segments) :]
        if len(last) == len(segments) and all(
            matches(name) for matches, name in zip(segments, last, strict=True)
        ):
            yield spot


def _no_linear(path: str, linears: Iterable[str]) -> str:
    names = sorted({name.rpartition(".")[2] for name in linears})
    near = difflib.get_close_matches(path.rpartition(".")[2], names)
    listed = (
        f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(names[:_LISTED])}"
    )
    return f"no nn.Linear is called {path!r}; {listed}"


def _check_weights(chosen: dict[str, nn.Linear]) -> None:
    for name, linear in chosen.items():
        weight = linear._parameters.get("weight")
        if weight is None or weight.dtype not in _DTYPES:
            what = "no parameter" if weight is None else f"of {weight.dtype}"
            raise ValueError(f"the weight of {name!r} is {what}, and cannot be adapted")


def _check_untied(graph: Graph, chosen: dict[str, nn.Linear]) -> None:
    """Refuse layers whose weight is used elsewhere too: merging would change that as well."""
    owners: dict[int, list[str]] = {}
    for name, module in graph.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(name)
    for name, linear in chosen.items():
        others = [owner for owner in owners[id(linear.weight)] if owner != name]
        if others:
            raise ValueError(
                f"the weight of {name!r} is tied to {others[0]!r}: a change of the one would be a "
                "change of the other; adapt other layers"
            )
