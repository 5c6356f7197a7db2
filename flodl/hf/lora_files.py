"""Adapter files in the layout of PEFT: ``adapter_config.json``, ``adapter_model.safetensors``.

Keys begin with ``base_model.model.<path>``. An adapted layer has ``.lora_A.weight`` and
``.lora_B.weight``. Heads that were trained as a whole, and trained biases, have the names
of their parameters. The bias of an adapted layer is ``.base_layer.bias``.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from fdl.base.files import replace_text
from flodl import log
from flodl.errors import CheckpointError, StateError
from flodl.graph.selection import Spot, select
from flodl.hf.errors import (
    CheckpointFormatError,
    CheckpointMismatchError,
    ConfigError,
    PickleOnlyError,
    need,
)
from flodl.hf.head_kind import HeadKind
from flodl.hf.lora import (
    BIAS,
    PARTS,
    WHOLE,
    LoraLinear,
    LoraSettings,
    adapted_layers,
    assign_change,
    can_change,
    heads_of,
    is_merged,
    marked,
    train_adapters,
)
from flodl.hf.source import ADAPTER as CONFIG_FILE, json_object, read_text
from flodl.hf.weights.writing import apart, write_file

if TYPE_CHECKING:
    from flodl.graph.graph import Graph

WEIGHTS_FILE = "adapter_model.safetensors"
PREFIX = "base_model.model."

_PARTS = re.compile(r"(?P<path>.+)\.lora_[AB]\.weight")
_OF_EMBEDDING = re.compile(r"(?P<path>.+)\.lora_embedding_[AB]")
# PEFT keeps the layer that it adapts below `base_layer`, and of a module that it trains as a whole
# the first state below `original_module`. The trained copy is saved twice.
_WRAPPED = re.compile(r"\.base_layer(?=\.[^.]+$)|\.modules_to_save(?:\.default)?(?=\.)")
_ORIGINAL = re.compile(r"\.original_module(?=\.)")

_PICKLE = "adapter_model.bin"
_TASKS = {
    HeadKind.BASE: "FEATURE_EXTRACTION",
    HeadKind.SEQCLS: "SEQ_CLS",
    HeadKind.TOKCLS: "TOKEN_CLS",
    HeadKind.QA: "QUESTION_ANS",
}
# With any of these, the model computes something other than LoRA.
_OTHER_METHODS = (
    "alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication", "lora_bias",
    "monteclora_config", "target_parameters", "trainable_token_indices", "use_bdlora", "use_dora",
    "use_qalora", "velora_config",
)  # fmt: skip
_BIASES = ("none", "all", "lora_only")
# Initialisations of the change that leave the weights as they are. With the others (pissa, olora,
# corda, loftq and so on), PEFT subtracts the change from the weights when it adds an adapter.
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")


def save_lora(
    graph: Graph, directory: str | os.PathLike[str], *, base_model: str | None = None
) -> None:
    """Write the adapters of a model, and the heads trained with them, for flodl and for PEFT.

    The directory is created if it does not exist. Each file is replaced as a whole.

    Args:
        graph: A model with adapted layers that are not merged.
        directory: Where to write the two files.
        base_model: Repository or directory of the model that the adapters are for, for the file.

    Raises:
        StateError: No layer is adapted, or adapters are merged.
        CheckpointError: A file cannot be written.
        MissingDependencyError: safetensors is not installed.
    """
    layers, heads = adapted_layers(graph), marked(graph, WHOLE)
    if any(is_merged(module) for module in graph.modules()):
        raise StateError("the adapters are merged into the weights: call unmerge_lora first")
    if not layers:
        raise StateError("no layer is adapted: call add_lora or load_lora first")
    need("safetensors")
    tensors = apart(_tensors(layers, heads, marked(graph, BIAS)))
    config = _config_of(graph, layers, [name for name, _ in heads], base_model)
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_file(tensors, folder / WEIGHTS_FILE)
        replace_text(folder / CONFIG_FILE, json.dumps(config, indent=2, sort_keys=True) + "\n")
    except OSError as error:
        raise CheckpointError(f"cannot write the adapters to {folder}: {error}") from error


def load_lora(graph: Graph, directory: str | os.PathLike[str]) -> list[str]:
    """Adapt a model with a directory that :func:`save_lora` or PEFT wrote.

    Layers that are adapted already take their change from the directory. Modules that the directory
    holds as a whole, mostly the head, are trained too and saved again. Everything else is frozen.
    After an error, the model is unchanged.

    Args:
        graph: The model that the adapters were made for.
        directory: Holds the two files.

    Returns:
        Names of the adapted layers, in the order of the file's keys.

    Raises:
        CheckpointFormatError: A file is missing or broken.
        PickleOnlyError: The weights exist as pickle files only.
        ConfigError: The adapters are of a kind other than LoRA of linear layers; names the
            field.
        CheckpointMismatchError: Layers or shapes do not match the model; lists all of them.
        StateError: A layer's adapter is merged.
        MissingDependencyError: safetensors is not installed.
    """
    folder = Path(directory)
    config = _read_config(folder)
    found = _matched(graph, _read_tensors(folder), folder)
    settings = [_settings_of(config, layer) for layer in found.layers]
    for layer, chosen in zip(found.layers, settings, strict=True):
        assign_change(layer.module, chosen, layer.a, layer.b)
    with torch.no_grad():
        for _, place, value in found.others:
            place.copy_(value)
    has_biases = config.get("bias", "none") != "none"
    heads, biased = _trained(graph, found, has_biases=has_biases)
    if has_biases and not biased:
        log.warning(
            f"{folder} holds no biases although bias is {config['bias']!r}: some versions of PEFT "
            "do not save those of adapted layers"
        )
    train_adapters(graph, heads, biased)
    return [layer.path for layer in found.layers]


def _trained(
    graph: Graph, found: _Found, *, has_biases: bool
) -> tuple[list[Spot], list[nn.Module]]:
    """The modules that a file holds as a whole, and those of which it holds only the bias."""
    loaded = {id(place) for _, place, _ in found.others}
    heads = [h for h in heads_of(graph) if all(id(p) in loaded for p in h.module.parameters())]
    inside = {id(p) for head in heads for p in head.module.parameters()}
    rest = [(spot, place) for spot, place, _ in found.others if id(place) not in inside]
    whole = {
        spot.path: spot
        for spot, place in rest
        if not has_biases or spot.module._parameters.get("bias") is not place
    }
    biased = [spot.module for spot, _ in rest if spot.path not in whole]
    return [*heads, *whole.values()], biased


# --- Writing ---------------------------------------------------------------------------------


def _tensors(
    layers: Iterable[tuple[str, LoraLinear]],
    heads: Iterable[tuple[str, nn.Module]],
    biased: Iterable[tuple[str, nn.Module]],
) -> dict[str, Tensor]:
    """The content of the file, by its keys."""
    tensors: dict[str, Tensor] = {}
    for name, layer in layers:
        # The matrices are layers themselves in PEFT.
        for part in PARTS:
            tensors[f"{PREFIX}{name}.{part}.weight"] = getattr(layer, part).detach().cpu()
    for name, module in biased:
        wrapped = ".base_layer" if isinstance(module, LoraLinear) else ""
        tensors[f"{PREFIX}{name}{wrapped}.bias"] = cast("Tensor", module.bias).detach().cpu()
    for name, head in heads:
        for key, value in head.state_dict().items():
            tensors[f"{PREFIX}{name}.{key}"] = value.cpu()
    return tensors


def _bias_of(graph: Graph, layers: list[tuple[str, LoraLinear]]) -> str:
    """How PEFT calls the biases that are trained."""
    biased = marked(graph, BIAS)
    if not biased:
        return "none"
    adapted = {id(layer) for _, layer in layers}
    return "lora_only" if all(id(module) in adapted for _, module in biased) else "all"


def _config_of(
    graph: Graph, layers: list[tuple[str, LoraLinear]], heads: list[str], base_model: str | None
) -> dict[str, Any]:
    all_by_root = all(layer.lora.use_rslora for _, layer in layers)
    told = {name: _in_file(layer.lora, by_root=all_by_root) for name, layer in layers}
    usual = Counter(told.values()).most_common(1)[0][0]
    ranks = {_exactly(n): one.r for n, one in told.items() if one.r != usual.r}
    alphas = {_exactly(n): one.alpha for n, one in told.items() if one.alpha != usual.alpha}
    return {
        "peft_type": "LORA",
        # With a task, PEFT expects the parameters of heads in the file too.
        "task_type": _task_of(graph) if heads or not graph.tree_children() else None,
        "base_model_name_or_path": base_model,
        "r": usual.r,
        "lora_alpha": usual.alpha,
        "lora_dropout": usual.dropout,
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "target_modules": _targets(graph, [name for name, _ in layers]),
        "modules_to_save": heads or None,
        "bias": _bias_of(graph, layers),
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "use_dora": False,
        "use_rslora": all_by_root,
    }


def _in_file(settings: LoraSettings, *, by_root: bool) -> LoraSettings:
    """Settings as a file holds them, which has one kind of scaling for all layers."""
    if settings.use_rslora == by_root:
        return settings
    alpha = settings.scaling * settings.r
    return LoraSettings(settings.r, alpha, settings.dropout, by_root)


def _exactly(name: str) -> str:
    return f"^{re.escape(name)}"


def _targets(graph: Graph, names: list[str]) -> list[str]:
    """The layers by the last segments of their names, if no other layers end in them."""
    alike: dict[str, set[str]] = {}
    for name, _ in graph.named_modules():
        alike.setdefault(name.rpartition(".")[2], set()).add(name)
    chosen = set(names)
    targets = []
    for name in names:
        last = name.rpartition(".")[2]
        targets.append(last if alike[last] <= chosen else name)
    return sorted(set(targets))


def _task_of(graph: Graph) -> str | None:
    if graph.source_config is None:
        return None
    classes = json.loads(graph.source_config).get("architectures") or [""]
    kind = HeadKind.of_class(classes[0])
    return None if kind is None else _TASKS.get(kind)


# --- Reading ---------------------------------------------------------------------------------


def _read_config(folder: Path) -> Mapping[str, Any]:
    path = folder / CONFIG_FILE
    try:
        config = json_object(read_text(path), str(path))
    except FileNotFoundError:
        raise CheckpointFormatError(
            f"{folder} has no {CONFIG_FILE}: give the directory that save_lora or PEFT wrote"
        ) from None
    except OSError as error:
        raise CheckpointFormatError(f"{path} cannot be read: {error}") from error
    if config.get("peft_type") != "LORA":
        raise ConfigError(f"{path}: peft_type is {config.get('peft_type')!r}, only LORA is known")
    if config.get("bias", "none") not in _BIASES:
        raise ConfigError(f"{path}: bias is {config['bias']!r}, known are {', '.join(_BIASES)}")
    for name in _OTHER_METHODS:
        if config.get(name):
            raise ConfigError(
                f"{path}: {name} is {config[name]!r}, which changes more than LoRA does; merge the "
                "adapters with PEFT and load the merged model"
            )
    start = config.get("init_lora_weights", True)
    if (start.lower() if isinstance(start, str) else start) not in _PLAIN_STARTS:
        raise ConfigError(
            f"{path}: init_lora_weights is {start!r}, for which PEFT changes the weights of the "
            "model too; save the adapters with its path_initial_model_for_weight_conversion, or "
            "merge them with PEFT and load the merged model"
        )
    return config


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        if (folder / _PICKLE).is_file():
            raise PickleOnlyError(
                f"{folder} has its adapters as {_PICKLE}, a pickle, which is never loaded: save "
                "them again with PEFT's save_pretrained(…, safe_serialization=True)"
            )
        raise CheckpointFormatError(f"{folder} has no {WEIGHTS_FILE}")
    library = need("safetensors")
    try:
        with library.safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
    except (OSError, library.SafetensorError) as error:
        raise CheckpointFormatError(f"{path} cannot be read: {error}") from error


# --- Matching --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Layer:
    """The change of one layer, as a file holds it."""

    path: str
    module: nn.Linear
    a: Tensor
    b: Tensor


@dataclass(slots=True)
class _Found:
    """The parts of a file, matched with a model.

    Attributes:
        layers: The changes of layers.
        others: The module, the parameter or buffer in it, and the new value.
        missing: Keys that the file lacks.
        unused: Keys of the file that the model has no place for.
        shapes: Keys with the shape that the model needs and the shape in the file.
    """

    layers: list[_Layer] = field(default_factory=list)
    others: list[tuple[Spot, Tensor, Tensor]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    shapes: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)


def _matched(graph: Graph, tensors: Mapping[str, Tensor], folder: Path) -> _Found:
    """Find the module for every tensor of a file.

    Args:
        graph: The model.
        tensors: The content of the file.
        folder: Its directory, for errors.

    Raises:
        CheckpointMismatchError: Layers or shapes do not match the model; lists all of them.
        ConfigError: The file adapts an embedding, or changes the weight of an adapted layer as a
            whole too.
        StateError: A layer's adapter is merged.
    """
    found = _Found()
    seen: set[str] = set()
    for key, value in tensors.items():
        name = key.removeprefix(PREFIX)
        part, table = _PARTS.fullmatch(name), _OF_EMBEDDING.fullmatch(name)
        if table is not None:
            raise ConfigError(
                f"{folder} adapts the embedding {table['path']!r}, and only linear layers are "
                "adapted here; merge the adapters with PEFT and load the merged model"
            )
        if name == key:
            found.unused.append(key)
        elif part is None:
            _match_other(graph, key, value, found)
        elif part["path"] not in seen:
            seen.add(part["path"])
            _match_layer(graph, part["path"], tensors, found)
    if found.missing or found.unused or found.shapes:
        raise CheckpointMismatchError(
            f"the adapters in {folder} are not of this model:",
            missing=found.missing,
            unused=found.unused,
            shape_mismatches=found.shapes,
        )
    return found


def _match_layer(graph: Graph, path: str, tensors: Mapping[str, Tensor], found: _Found) -> None:
    """Match both tensors of one layer's change."""
    wanted = [f"{PREFIX}{path}.{part}.weight" for part in PARTS]
    spot = _only(select(graph, path))
    if spot is None or not can_change(spot):
        found.unused += [key for key in wanted if key in tensors]
        return
    if is_merged(spot.module):
        raise StateError(f"the adapter of {spot.path!r} is merged: call unmerge_lora first")
    missing = [key for key in wanted if key not in tensors]
    found.missing += missing
    if missing:
        return
    a, b = tensors[wanted[0]], tensors[wanted[1]]
    rank = max(1, a.shape[0]) if a.dim() else 1
    layer = cast("nn.Linear", spot.module)
    for key, shape in zip(
        wanted, ((rank, layer.in_features), (layer.out_features, rank)), strict=True
    ):
        if tensors[key].shape != shape:
            found.shapes.append((key, shape, tuple(tensors[key].shape)))
    found.layers.append(_Layer(spot.path, layer, a, b))


def _match_other(graph: Graph, key: str, value: Tensor, found: _Found) -> None:
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


def _settings_of(config: Mapping[str, Any], layer: _Layer) -> LoraSettings:
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
    return LoraSettings(layer.a.shape[0], alpha, dropout, bool(config.get("use_rslora")))


def _number(config: Mapping[str, Any], name: str, default: float) -> float:
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{CONFIG_FILE}: {name} is {value!r}, it must be a finite number")
    return value
