"""Adapter files in the layout of PEFT: ``adapter_config.json``, ``adapter_model.safetensors``.

Keys begin with ``base_model.model.<path>``. A linear layer has ``.lora_A.weight`` and
``.lora_B.weight``, an embedding ``.lora_embedding_A`` and ``.lora_embedding_B``; DoRA adds
``.lora_magnitude_vector``. Heads that were trained as a whole, and trained biases, have the names
of their parameters. The bias of an adapted layer is ``.base_layer.bias``.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from fdl.base.files import replace_text, replacing
from flodl import log
from flodl.errors import CheckpointError, StateError
from flodl.graph.selection import Spot
from flodl.hf.dependencies import need
from flodl.hf.errors import CheckpointFormatError, ConfigError, PickleOnlyError
from flodl.hf.head_kind import HeadKind
from flodl.hf.lora import (
    adapted_layers,
    heads_of,
    is_merged,
    saved_biases,
    saved_heads,
    train_adapters,
)
from flodl.hf.lora_layers import (
    MAGNITUDE,
    LoraSettings,
    assign_change,
    is_adapted_kind,
    parts_of,
)
from flodl.hf.lora_matching import CONFIG_FILE, PREFIX, Found, matched, settings_of

if TYPE_CHECKING:
    from flodl.graph.graph import Graph
    from flodl.hf.lora_layers import Adapted

WEIGHTS_FILE = "adapter_model.safetensors"

_PICKLE = "adapter_model.bin"
_TASKS = {
    HeadKind.BASE: "FEATURE_EXTRACTION",
    HeadKind.SEQCLS: "SEQ_CLS",
    HeadKind.TOKCLS: "TOKEN_CLS",
    HeadKind.QA: "QUESTION_ANS",
}
# With any of these, the model computes something other than LoRA and DoRA.
_OTHER_METHODS = (
    "alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication", "lora_bias",
    "monteclora_config", "target_parameters", "trainable_token_indices", "use_bdlora", "use_qalora",
    "velora_config",
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
        StateError: No layer is adapted, or adapters are merged, or some layers are adapted with
            DoRA and some without.
        CheckpointError: A file cannot be written.
        MissingDependencyError: safetensors is not installed.
    """
    layers, heads = adapted_layers(graph), saved_heads(graph)
    if any(is_merged(module) for module in graph.modules()):
        raise StateError("the adapters are merged into the weights: call unmerge_lora first")
    if not layers:
        raise StateError("no layer is adapted: call add_lora or load_lora first")
    _check_one_kind(layers)
    tensors = _tensors(layers, heads, saved_biases(graph))
    # One storage per tensor, as the format requires; a head may hold one parameter under two names.
    copies = {key: value.cpu().clone(memory_format=torch.contiguous_format)
              for key, value in tensors.items()}  # fmt: skip
    data: bytes = need("safetensors.torch").save(copies, metadata={"format": "pt"})
    config = _config_of(graph, layers, [name for name, _ in heads], base_model)
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / WEIGHTS_FILE) as file:
            file.write(data)
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
        ConfigError: The adapters are of a kind other than LoRA and DoRA; names the field.
        CheckpointMismatchError: Layers or shapes do not match the model; lists all of them.
        StateError: A layer's adapter is merged.
        MissingDependencyError: safetensors is not installed.
    """
    folder = Path(directory)
    config = _read_config(folder)
    found = matched(graph, _read_tensors(folder), folder, use_dora=bool(config.get("use_dora")))
    settings = {layer.path: settings_of(config, layer) for layer in found.layers}
    for layer in found.layers:
        assign_change(layer.module, settings[layer.path], layer.change)
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


def _trained(graph: Graph, found: Found, *, has_biases: bool) -> tuple[list[Spot], list[nn.Module]]:
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
    layers: Iterable[tuple[str, Adapted]],
    heads: Iterable[tuple[str, nn.Module]],
    biased: Iterable[tuple[str, nn.Module]],
) -> dict[str, Tensor]:
    """The content of the file, by its keys."""
    tensors: dict[str, Tensor] = {}
    for name, layer in layers:
        # The matrices of a linear layer are layers themselves in PEFT.
        ending = "" if isinstance(layer, nn.Embedding) else ".weight"
        for part in parts_of(layer):
            key = f"{PREFIX}{name}.{part}{'' if part == MAGNITUDE else ending}"
            tensors[key] = getattr(layer, part).detach()
    for name, module in biased:
        wrapped = ".base_layer" if is_adapted_kind(module) else ""
        tensors[f"{PREFIX}{name}{wrapped}.bias"] = cast("Tensor", module.bias).detach()
    for name, head in heads:
        for key, value in head.state_dict().items():
            tensors[f"{PREFIX}{name}.{key}"] = value
    return tensors


def _check_one_kind(layers: list[tuple[str, Adapted]]) -> None:
    kinds = {layer.lora.use_dora: name for name, layer in layers}
    if len(kinds) > 1:
        raise StateError(
            f"{kinds[True]!r} is adapted with use_dora and {kinds[False]!r} without it: a file has "
            "one kind only; adapt all layers in the same way"
        )


def _bias_of(graph: Graph, layers: list[tuple[str, Adapted]]) -> str:
    """How PEFT calls the biases that are trained."""
    biased = saved_biases(graph)
    if not biased:
        return "none"
    adapted = {id(layer) for _, layer in layers}
    return "lora_only" if all(id(module) in adapted for _, module in biased) else "all"


def _config_of(
    graph: Graph, layers: list[tuple[str, Adapted]], heads: list[str], base_model: str | None
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
        "use_dora": usual.use_dora,
        "use_rslora": all_by_root,
    }


def _in_file(settings: LoraSettings, *, by_root: bool) -> LoraSettings:
    """Settings as a file holds them, which has one kind of scaling for all layers."""
    if settings.use_rslora == by_root:
        return settings
    alpha = settings.scaling * settings.r
    return LoraSettings(settings.r, alpha, settings.dropout, by_root, settings.use_dora)


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
        config = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise CheckpointFormatError(
            f"{folder} has no {CONFIG_FILE}: give the directory that save_lora or PEFT wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointFormatError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointFormatError(f"{path} holds no JSON object")
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
