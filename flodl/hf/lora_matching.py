"""Match the tensors of an adapter file with the modules of a model."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flodl.errors import StateError
from flodl.graph.selection import Spot, select
from flodl.hf.errors import CheckpointMismatchError, ConfigError
from flodl.hf.lora import is_merged
from flodl.hf.lora_layers import KINDS, MAGNITUDE, Change, LoraSettings, is_adapted_kind, shapes

if TYPE_CHECKING:
    from flodl.graph.graph import Graph

CONFIG_FILE = "adapter_config.json"
PREFIX = "base_model.model."

_OF_LINEAR = ("lora_A.weight", "lora_B.weight")
_OF_EMBEDDING = ("lora_embedding_A", "lora_embedding_B")
_PARTS = re.compile(
    r"(?P<path>.+)\.(?P<part>lora_[AB]\.weight|lora_embedding_[AB]|lora_magnitude_vector)"
)
# PEFT keeps the layer that it adapts below `base_layer`, and of a module that it trains as a whole
# the first state below `original_module`. The trained copy is saved twice.
_WRAPPED = re.compile(r"\.base_layer(?=\.[^.]+$)|\.modules_to_save(?:\.default)?(?=\.)")
_ORIGINAL = re.compile(r"\.original_module(?=\.)")


@dataclass(frozen=True, slots=True)
class Layer:
    """The change of one layer, as a file holds it.

    Attributes:
        path: The name of the layer in the model.
        module: The layer: linear or an embedding, adapted or not.
        change: The tensors.
    """

    path: str
    module: nn.Module
    change: Change


@dataclass(slots=True)
class Found:
    """The parts of a file, matched with a model.

    Attributes:
        layers: The changes of layers.
        others: The module, the parameter or buffer in it, and the new value.
        missing: Keys that the file lacks.
        unused: Keys of the file that the model has no place for.
        shapes: Keys with the shape that the model needs and the shape in the file.
    """

    layers: list[Layer] = field(default_factory=list)
    others: list[tuple[Spot, Tensor, Tensor]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    shapes: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)


def matched(graph: Graph, tensors: Mapping[str, Tensor], folder: Path, *, use_dora: bool) -> Found:
    """Find the module for every tensor of a file.

    Args:
        graph: The model.
        tensors: The content of the file.
        folder: Its directory, for errors.
        use_dora: Whether every layer must have a magnitude.

    Raises:
        CheckpointMismatchError: Layers or shapes do not match the model; lists all of them.
        ConfigError: The file changes the weight of an adapted layer as a whole too.
        StateError: A layer's adapter is merged.
    """
    found = Found()
    seen: set[str] = set()
    for key, value in tensors.items():
        name = key.removeprefix(PREFIX)
        part = _PARTS.fullmatch(name)
        if name == key:
            found.unused.append(key)
        elif part is None:
            _match_other(graph, key, value, found)
        elif part["path"] not in seen:
            seen.add(part["path"])
            _match_layer(graph, part["path"], tensors, found, use_dora=use_dora)
    if found.missing or found.unused or found.shapes:
        raise CheckpointMismatchError(
            f"the adapters in {folder} are not of this model:",
            missing=found.missing,
            unused=found.unused,
            shape_mismatches=found.shapes,
        )
    return found


def _match_layer(
    graph: Graph, path: str, tensors: Mapping[str, Tensor], found: Found, *, use_dora: bool
) -> None:
    """Match all tensors of one layer's change."""
    start = f"{PREFIX}{path}."
    held = [key for key in tensors if key.startswith(start) and _PARTS.fullmatch(key)]
    spot = _only(select(graph, path))
    if spot is None or not (type(spot.module) in KINDS or is_adapted_kind(spot.module)):
        found.unused += held
        return
    if is_merged(spot.module):
        raise StateError(f"the adapter of {spot.path!r} is merged: call unmerge_lora first")
    names = _OF_EMBEDDING if isinstance(spot.module, nn.Embedding) else _OF_LINEAR
    wanted = [start + name for name in (*names, *([MAGNITUDE] if use_dora else []))]
    found.unused += [key for key in held if key not in wanted]
    missing = [key for key in wanted if key not in tensors]
    found.missing += missing
    if missing:
        return
    a, b = tensors[wanted[0]], tensors[wanted[1]]
    rank = max(1, a.shape[0]) if a.dim() else 1
    for key, shape in zip(wanted, shapes(spot.module, rank), strict=False):
        if tensors[key].shape != shape:
            found.shapes.append((key, shape, tuple(tensors[key].shape)))
    magnitude = tensors[wanted[2]] if use_dora else None
    found.layers.append(Layer(spot.path, spot.module, Change(a, b, magnitude)))


def _match_other(graph: Graph, key: str, value: Tensor, found: Found) -> None:
    """Match a tensor that is no change: of a module saved as a whole, or a bias."""
    if _ORIGINAL.search(key):
        return  # the state before the training, which PEFT keeps for switching adapters off
    wrapped = _WRAPPED.search(key)
    path, _, name = _WRAPPED.sub("", key.removeprefix(PREFIX)).rpartition(".")
    spot = _only(select(graph, path))
    held = {**spot.module._parameters, **spot.module._buffers} if spot is not None else {}
    place = held.get(name)
    if spot is None or place is None:
        found.unused.append(key)
    elif place.shape != value.shape:
        found.shapes.append((key, tuple(place.shape), tuple(value.shape)))
    elif wrapped and wrapped[0] == ".base_layer" and name == "weight":
        _check_unchanged(key, place, value)
    else:
        found.others.append((spot, place, value))


def _check_unchanged(key: str, place: Tensor, value: Tensor) -> None:
    """Accept the weight of an adapted layer, which PEFT may save too, if it is the model's."""
    if not torch.equal(place.detach().cpu(), value.to(place.dtype)):
        raise ConfigError(
            f"{key} differs from the weight of the model: it was changed as a whole too; merge the "
            "adapters with PEFT and load the merged model"
        )


def _only(spots: Sequence[Spot]) -> Spot | None:
    return spots[0] if len(spots) == 1 else None


def settings_of(config: Mapping[str, Any], layer: Layer) -> LoraSettings:
    """The settings of a layer; the rank is that of its tensors.

    Args:
        config: The content of ``adapter_config.json``.
        layer: The layer.

    Raises:
        ConfigError: A value is out of range, or a pattern is not valid.
    """
    alpha = _number(config, "lora_alpha", 8)
    patterns = config.get("alpha_pattern") or {}
    for pattern in patterns:
        try:
            matches = re.fullmatch(rf"(.*\.)?({pattern})", layer.path)
        except re.error as error:
            raise ConfigError(
                f"{CONFIG_FILE}: alpha_pattern has {pattern!r}, not a valid pattern: {error}"
            ) from error
        if matches:
            alpha = _number(patterns, pattern, alpha)
            break
    dropout = _number(config, "lora_dropout", 0.0)
    if not 0.0 <= dropout < 1.0:
        raise ConfigError(
            f"{CONFIG_FILE}: lora_dropout is {dropout}; it must be at least 0 and below 1"
        )
    by_root, use_dora = bool(config.get("use_rslora")), bool(config.get("use_dora"))
    return LoraSettings(layer.change.a.shape[0], alpha, dropout, by_root, use_dora)


def _number(config: Mapping[str, Any], name: str, default: float) -> float:
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{CONFIG_FILE}: {name} is {value!r}, it must be a finite number")
    return value
