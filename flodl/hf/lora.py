"""LoRA: train a low-rank change of some layers while their weights stay fixed.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021: a layer ``y = x Wᵀ + b``
becomes ``y = x Wᵀ + b + (alpha / r) · x Aᵀ Bᵀ`` with ``A [r, in]`` and ``B [out, r]``. B starts at
zero, so the output does not change before the first step. Parameters have the names that they
have in adapter files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from fdl.base.suggest import nearest
from flodl.errors import PathError, StateError
from flodl.graph.freezing import freeze_params, unfreeze_params
from flodl.graph.selection import Spot, places, segment_matcher, select
from flodl.hf.families.albert import FlatPooler

if TYPE_CHECKING:
    from flodl.graph.graph import Graph

Bias = Literal["none", "all", "lora_only"]
"""Which biases are trained: none, all of the model, or those of the adapted layers."""

WHOLE = "_saved_with_lora"
"""The mark of a module that is trained as a whole."""
BIAS = "_bias_saved_with_lora"
"""The mark of a module whose bias is trained."""

_FOLDED = "_folded_lora"
_LISTED = 12
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


# --- Layers ------------------------------------------------------------------------------------


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


# --- Models ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Folded:
    """What a merged layer needs to become an adapted one again; not part of the state dict."""

    settings: LoraSettings
    parts: dict[str, nn.Parameter]
    original: Tensor


def add_lora(
    graph: Graph,
    paths: str | Iterable[str],
    *,
    r: int = 8,
    alpha: float = 16,
    dropout: float = 0.0,
    train_head: bool = True,
    use_rslora: bool = False,
    bias: Bias = "none",
) -> list[str]:
    """Adapt linear layers, and freeze everything else.

    Make the optimizer afterwards, with ``graph.trainable_parameters()``.

    Args:
        graph: A model.
        paths: Paths of ``nn.Linear`` modules, or of modules that contain some. If no
            module has this path from the top, it is compared with the ends of all names. So
            ``"query"`` or ``"attention.self.query"`` means all layers of that name outside a
            trained head. Segments may be patterns, see :mod:`flodl.graph.selection`.
        r: Rank.
        alpha: The change is multiplied by ``alpha / r``.
        dropout: Dropout on the inputs of the change, during training.
        train_head: Train the whole head, and save it with the adapters. The encoder is the labelled
            graph inside ``graph``; the head is everything outside it. A head that shares
            parameters with the encoder, like that of a masked language model, is not trained. An
            encoder alone has no head.
        use_rslora: Multiply the change by ``alpha / √r`` instead of ``alpha / r``.
        bias: Also train biases, and save them with the adapters: ``"all"`` of the model, or
            ``"lora_only"`` those of the layers adapted now.

    Returns:
        Names of the adapted layers, in the order of the model.

    Raises:
        PathError: A path leads to no layer that can be adapted.
        ValueError: There are no paths, or a setting is out of range. Or a layer is adapted already,
            or belongs to the head that is trained as a whole. Or its weight is not a parameter of
            floats, or another module shares it.
    """
    settings = LoraSettings(r, alpha, dropout, use_rslora)
    if bias not in ("none", "all", "lora_only"):
        raise ValueError(f"bias={bias!r}: it is 'none', 'all' or 'lora_only'")
    named = [paths] if isinstance(paths, str) else list(paths)
    if not named:
        raise ValueError('there are no paths: name the layers to adapt, as ["query", "value"]')
    heads = heads_of(graph) if train_head else []
    chosen = _choose(graph, named, heads)
    _check_weights(chosen)
    for name, other in _tied(graph, chosen):
        raise ValueError(
            f"the weight of {name!r} is tied to {other!r}: a change of the one would be a "
            "change of the other; adapt other layers"
        )
    # Make all changes first: if memory runs out, the model stays as it was.
    changes = [fresh_change(layer, settings) for layer in chosen.values()]
    for layer, change in zip(chosen.values(), changes, strict=True):
        become(layer, settings, *change)
    biased: Iterable[nn.Module] = graph.modules() if bias == "all" else chosen.values()
    train_adapters(graph, heads, () if bias == "none" else biased)
    return list(chosen)


def merge_lora(graph: Graph) -> None:
    """Put every change into its weight: the model is ordinary again, as fast as without LoRA.

    Layers are plain ``nn.Linear`` again, and the state dict has the names of the unadapted model.
    Each layer also keeps its change and its former weight for :func:`unmerge_lora`.

    Raises:
        StateError: No layer is adapted, or another module uses the weight of one.
    """
    layers = adapted_layers(graph)
    if not layers:
        raise StateError("no layer is adapted: call add_lora or load_lora first")
    for name, other in _tied(graph, dict(layers)):
        raise StateError(
            f"the weight of {name!r} is tied to {other!r}, which merging would change too: leave "
            "the adapters as they are"
        )
    for _, layer in layers:
        parts = {name: cast("nn.Parameter", getattr(layer, name)) for name in PARTS}
        folded = _Folded(layer.lora, parts, layer.weight.detach().clone())
        with torch.no_grad():
            layer.weight.copy_(layer.merged())
        for name in (*parts, "lora"):
            delattr(layer, name)
        plain = next(kind for kind, adapted in KINDS.items() if adapted is type(layer))
        layer.__class__ = plain  # type: ignore[assignment]
        setattr(layer, _FOLDED, folded)


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
        adapted = cast("LoraLinear", layer)
        with torch.no_grad():
            adapted.weight.copy_(folded.original)
        adapted.__class__ = KINDS[type(layer)]
        adapted.lora = folded.settings
        # The same parameter objects, for an optimizer that holds them. The model may have moved.
        for name, parameter in folded.parts.items():
            parameter.data = parameter.data.to(adapted.weight.device)
            setattr(adapted, name, parameter)


def adapted_layers(graph: Graph) -> list[tuple[str, LoraLinear]]:
    """Names and modules of all adapted layers that are not merged, each once."""
    return [(name, one) for name, one in graph.named_modules() if isinstance(one, LoraLinear)]


def is_merged(module: nn.Module) -> bool:
    """Whether the change of a layer is added to its weight."""
    return _FOLDED in module.__dict__


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


def marked(graph: Graph, mark: str) -> list[tuple[str, nn.Module]]:
    """Names and modules of what is trained and saved with the adapters, by one of the marks."""
    return [(name, module) for name, module in graph.named_modules() if mark in module.__dict__]


def train_adapters(graph: Graph, heads: Iterable[Spot], biased: Iterable[nn.Module] = ()) -> None:
    """Train the changes, the given heads and biases and those of earlier calls; freeze the rest.

    Args:
        graph: The model.
        heads: Modules to train as a whole.
        biased: Modules whose ``bias`` is trained; modules without a bias are left out.
    """
    for head in heads:
        setattr(head.module, WHOLE, True)
    for module in biased:
        if module._parameters.get("bias") is not None:
            setattr(module, BIAS, True)
    layers = adapted_layers(graph)
    trained = [getattr(layer, part) for _, layer in layers for part in PARTS]
    trained += [p for _, head in marked(graph, WHOLE) for p in head.parameters()]
    trained += [cast("nn.Parameter", module.bias) for _, module in marked(graph, BIAS)]
    kept = set(map(id, trained))
    freeze_params(p for p in graph.parameters() if id(p) not in kept)
    unfreeze_params(trained)


def _choose(graph: Graph, paths: list[str], heads: list[Spot]) -> dict[str, nn.Linear]:
    """The layers that the paths mean, by name, in the order of the model."""
    layers = {spot.path: spot for spot in places(graph) if can_change(spot)}
    meant: set[int] = set()
    for path in paths:
        found = [
            spot
            for outer in select(graph, path)
            for spot in layers.values()
            if _within(spot.path, outer)
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
                for spot in _ending(layers.values(), path)
                if not any(_within(spot.path, head) for head in heads)
            ]
        if not found:
            raise PathError(_no_layer(path, layers))
        meant.update(id(spot.module) for spot in found)
    named = cast("Iterable[tuple[str, nn.Linear]]", graph.named_modules())
    chosen = {name: module for name, module in named if id(module) in meant}
    for name, module in chosen.items():
        if isinstance(module, LoraLinear) or is_merged(module):
            raise ValueError(f"{name!r} is adapted already")
    return chosen


def can_change(spot: Spot) -> bool:
    """Whether a module is of a kind that can be adapted, or is adapted."""
    return type(spot.module) in KINDS or isinstance(spot.module, LoraLinear)


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


def _no_layer(path: str, layers: Iterable[str]) -> str:
    names = sorted({name.rpartition(".")[2] for name in layers})
    near = nearest(path.rpartition(".")[2], names)
    listed = f"did you mean {near}?" if near else f"there are: {', '.join(names[:_LISTED])}"
    return f"no linear layer is called {path!r}; {listed}"


def _check_weights(chosen: Mapping[str, nn.Module]) -> None:
    for name, layer in chosen.items():
        weight = layer._parameters.get("weight")
        if weight is None or weight.dtype not in _DTYPES:
            what = "no parameter" if weight is None else f"of {weight.dtype}"
            raise ValueError(f"the weight of {name!r} is {what}, and cannot be adapted")


def _tied(graph: Graph, chosen: Mapping[str, nn.Module]) -> Iterator[tuple[str, str]]:
    """The layers whose weight another module holds too, each with the name of that module."""
    owners: dict[int, list[str]] = {}
    for name, module in graph.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(name)
    for name, layer in chosen.items():
        others = [owner for owner in owners[id(layer.weight)] if owner != name]
        if others:
            yield name, others[0]
