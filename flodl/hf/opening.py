"""Open a directory or repository as a model: configuration, then graph, then weights.

::

    config = with_head(read_config(checkpoint, family, kind, asked), kind, stored.tensors)
    graph = build(config, kind)
    fill(graph, stored, config)

Each stage makes one value from those before. Only the headers of the weights are read before the
model is built.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypedDict

import torch

from flodl.device import select_device
from flodl.graph import Graph
from flodl.hf.build import build
from flodl.hf.config import EncoderConfig
from flodl.hf.config_fields import LABEL_FIELDS, Labels
from flodl.hf.errors import ConfigError, FileNotFoundOnHub
from flodl.hf.families import AutoConfig, family_of
from flodl.hf.families.deberta import DebertaV2Config
from flodl.hf.head_kind import HeadKind, saved_head
from flodl.hf.hub import locate
from flodl.hf.layers.attention import check_attention
from flodl.hf.source import ADAPTER, CONFIG, Access, Checkpoint, reach
from flodl.hf.tokenizer import PreTrainedTokenizerFast
from flodl.hf.weights.fill import HeadInit, LoadReport, fill
from flodl.hf.weights.keys import is_start_for, keys_have_pooler
from flodl.hf.weights.stored import StoredFiles
from flodl.log import warning

Source = str | os.PathLike[str]


_CLASSIFIERS = ("classifier.weight", "classifier.out_proj.weight")


class Opening(TypedDict, total=False):
    """Keyword arguments of every ``from_pretrained``.

    Fields of the configuration may be given too, by their names in ``config.json``.

    Attributes:
        config: Used instead of that of the checkpoint.
        device: Where the model goes; the CPU if not given.
        dtype: ``"float32"``, ``"bfloat16"``, … to convert to; otherwise, and for ``"auto"``,
            weights keep their types.
        torch_dtype: The same under its name in older programs.
        revision: Branch, tag or commit.
        token: Sent to the Hub; True for the stored token, False for none.
        cache_dir: Where downloads are kept.
        local_files_only: Never ask the network.
        subfolder: Folder inside the directory or repository.
        attn_implementation: ``"sdpa"`` or ``"eager"``; both mean the one attention of flodl.
        key_mapping: Renames tensors of the files: regular expression -> replacement. With
            ``{"^module[.]": ""}``, weights that were saved from DistributedDataParallel fit.
    """

    config: EncoderConfig | None
    device: torch.device | str | None
    dtype: torch.dtype | str | None
    torch_dtype: torch.dtype | str | None
    revision: str | None
    token: str | bool | None
    cache_dir: Source | None
    local_files_only: bool
    subfolder: str
    attn_implementation: str | None
    key_mapping: Mapping[str, str] | None


class EncoderOpening(Opening, total=False):
    """Further keyword arguments for models without a head.

    Attributes:
        add_pooling_layer: False leaves out a pooler that the checkpoint has.
    """

    add_pooling_layer: bool


class HeadOpening(Opening, total=False):
    """Further keyword arguments for models with a head.

    Attributes:
        num_labels: Number of classes. With this, ``id2label`` or ``label2id``, a classifier that
            the checkpoint lacks is drawn, with a warning.
        id2label: Names of the classes, in order or by id.
        label2id: The same in the other direction.
        problem_type: Replaces that of the configuration: ``"regression"``,
            ``"single_label_classification"`` or ``"multi_label_classification"``.
        head_init: ``"random"`` draws a head that the checkpoint lacks, ``"replace"`` also a head of
            another width. Without either, a head that does not fit is an error. Only a head that
            finds answers is drawn anyway, with a warning, if the checkpoint holds nothing of it;
            ``"strict"`` refuses that too.
        ignore_mismatched_sizes: True is the same as ``head_init="replace"``.
        seed: Seed of the drawn values.
        tokenizer: Used instead of the checkpoint's tokenizer.
    """

    num_labels: int | None
    id2label: Labels | None
    label2id: Mapping[str, int] | None
    problem_type: str | None
    head_init: HeadInit | None
    ignore_mismatched_sizes: bool
    seed: int | None
    tokenizer: PreTrainedTokenizerFast | None


@dataclass(frozen=True, slots=True)
class Opened:
    """An opened model.

    Attributes:
        graph: The model, in evaluation mode.
        config: The configuration it was built from, with its class, labels and variant filled in.
        checkpoint: The checkpoint it came from.
    """

    graph: Graph
    config: EncoderConfig
    checkpoint: Checkpoint


def open_model(
    src: Source,
    kind: HeadKind | None,
    options: Mapping[str, Any],
    *,
    family: type[EncoderConfig] | None = None,
) -> Opened:
    """Build a model and load its weights.

    Args:
        src: Directory or repository.
        kind: The head; None for the head of the class that the checkpoint was saved from.
        options: The arguments of ``from_pretrained``: :class:`EncoderOpening` for an encoder
            without a head, else :class:`HeadOpening`.
        family: The expected family; None for any of the seven.

    Raises:
        FlodlError: One of ``flodl.hf.errors``.
        FileNotFoundError: The directory does not exist, or files are missing in it.
    """
    access, asked = settled(options)
    if asked.pop("ignore_mismatched_sizes", False) and kind is not HeadKind.BASE:
        asked["head_init"] = "replace"
    checkpoint = locate(src, access)
    config = read_config(checkpoint, family, kind, asked)
    kind = kind or saved_head(config)
    stored = StoredFiles(checkpoint.weight_files(), asked.get("key_mapping"))
    config = with_head(config, kind, stored.tensors, new_head=asked.get("head_init") == "replace")
    pooled = asked.get("add_pooling_layer") is not False and keys_have_pooler(stored.tensors)
    graph = build(config, kind, pooler=pooled)
    if _filled(graph, stored, config, kind, asked, checkpoint).untied:
        config = config.replace(tie_word_embeddings=False)
    graph.set_source_config(config.to_json_string())
    return Opened(graph.eval(), config, checkpoint)


def _filled(
    graph: Graph,
    stored: StoredFiles,
    config: EncoderConfig,
    kind: HeadKind,
    asked: Mapping[str, Any],
    checkpoint: Checkpoint,
) -> LoadReport:
    """Fill a graph as the caller asks, and warn of a head that was drawn without being asked for.

    Who names the classes wants a classifier of them, as in transformers. All heads that find
    answers are alike, so an encoder is a start for one.
    """
    head_init: HeadInit | None = asked.get("head_init")
    if head_init is None and kind is HeadKind.QA:
        start = is_start_for(family_of(config).finder, stored.tensors, config.prefix)
        head_init = "random" if start else None
    elif head_init is None and kind.labelled:
        named = any(asked.get(name) is not None for name in (*LABEL_FIELDS, "config"))
        head_init = "random" if named else None
    report = fill(
        graph,
        stored,
        config,
        dtype=asked.get("dtype"),
        device=asked.get("device"),
        head_init=head_init,
        seed=asked.get("seed"),
        commit=checkpoint.commit,
    )
    if report.initialised and head_init != asked.get("head_init"):
        warning(
            f"{checkpoint.name}: {', '.join(report.initialised)} are not in the checkpoint and "
            "were drawn: train the model before you use it"
        )
    return report


# --- The configuration -------------------------------------------------------------------------


def read_config(
    checkpoint: Checkpoint,
    family: type[EncoderConfig] | None = None,
    kind: HeadKind | None = None,
    asked: Mapping[str, Any] | None = None,
) -> EncoderConfig:
    """The configuration of a checkpoint, or that of the caller, with the fields of the caller.

    Args:
        checkpoint: A directory or repository.
        family: The expected family; None for any of the seven.
        kind: The head; None for that of the class which the configuration names.
        asked: The arguments of the caller.

    Raises:
        ConfigError: There is no configuration, it cannot be built, or it is of another family. Or
            a value of the caller is impossible, or two contradict each other.
        TypeError: An argument is neither an option nor a field.
        FileNotFoundOnHub: The repository has no configuration.
    """
    known = EncoderOpening if kind is HeadKind.BASE else HeadOpening
    fields = {}
    for name, value in (asked or {}).items():
        if name in LABEL_FIELDS and kind in (HeadKind.QA, HeadKind.MLM):
            continue
        if name not in known.__optional_keys__ or (name in _FIELDS and value is not None):
            fields[name] = value
    given = (asked or {}).get("config")
    config = _own(checkpoint, family, fields) if given is None else _checked(given, family, fields)
    for name in fields:
        if not config.has_field(name):
            raise TypeError(
                f"from_pretrained() takes no argument {name!r}; it takes "
                f"{', '.join(sorted(known.__optional_keys__))}, and the fields of "
                f"{type(config).__name__}"
            )
    return config


def _checked(
    config: EncoderConfig, family: type[EncoderConfig] | None, fields: Mapping[str, Any]
) -> EncoderConfig:
    """A configuration that the caller gives, with some fields set."""
    wanted = family or EncoderConfig
    if not isinstance(config, wanted):
        maker = AutoConfig if family is None else family
        raise TypeError(
            f"config is a {type(config).__module__}.{type(config).__name__}: give one that "
            f"flodl.hf.{maker.__name__}.from_pretrained(source) returns"
        )
    return config.from_dict(config.source, **fields)


def _own(
    checkpoint: Checkpoint, family: type[EncoderConfig] | None, fields: Mapping[str, Any]
) -> EncoderConfig:
    """The configuration of a checkpoint, with some fields set."""
    text, origin = checkpoint.text(CONFIG), f"{checkpoint.name}/{CONFIG}"
    if text is None:
        _refuse_adapter(checkpoint)
        error = ConfigError if checkpoint.is_local else FileNotFoundOnHub
        raise error(f"{checkpoint.name}: there is no {CONFIG}, which says what the model is")
    return (family or AutoConfig).from_json_str(text, origin=origin, fields=fields)


def _refuse_adapter(checkpoint: Checkpoint) -> None:
    """Say what a folder of PEFT is. The model that it names is not opened for it.

    Anyone may have written that name, so the user decides.
    """
    text = checkpoint.text(ADAPTER)
    if text is None:
        return
    base = None
    with contextlib.suppress(ValueError, TypeError, KeyError):
        base = json.loads(text)["base_model_name_or_path"]
    raise ConfigError(
        f"{checkpoint.name} is an adapter of PEFT for the model {base!r}, and not a model: "
        f"open that one with from_pretrained({base!r}), then "
        f"load_lora(model.graph, {checkpoint.name!r})"
    )


def with_head(
    config: EncoderConfig,
    kind: HeadKind,
    tensors: Mapping[str, Any],
    *,
    new_head: bool = False,
) -> EncoderConfig:
    """The configuration of a model with this head: its class, its labels and its variant.

    Here it is decided how many classes there are and what they are called. Everything after this
    reads ``config.id2label``.

    Args:
        config: That of a checkpoint.
        kind: The head.
        tensors: The descriptions of the tensors of the checkpoint, which have a ``shape``, by key;
            none for a new model.
        new_head: Whether the head is drawn again. Then the checkpoint's classifier does not say how
            many classes there are.

    Raises:
        ConfigError: Labels or head of the configuration contradict each other.
    """
    fields: dict[str, Any] = {"architectures": (config.class_name(kind),)}
    if kind.labelled:
        last = tensors.get(_CLASSIFIERS[0]) or tensors.get(_CLASSIFIERS[1])
        rows = last.shape[0] if last and last.shape and not new_head else None
        fields["_names"] = config.labels_for(rows)
    elif kind is HeadKind.QA:
        fields["_names"] = None  # transformers reads the width of this head from the labels
    config = config.replace(**fields)
    if kind is HeadKind.MLM and isinstance(config, DebertaV2Config):
        config = config.for_masked_lm(legacy=_has_older_decoder(config, tensors))
    return config


def _has_older_decoder(config: DebertaV2Config, keys: Iterable[str]) -> bool:
    """Whether the weights hold the older masked-language head.

    If they hold both heads or neither, the value of the file stays.
    """
    older = any(key.startswith("cls.predictions.") for key in keys)
    newer = any(key.startswith("lm_predictions.lm_head.") for key in keys)
    return config.legacy if older == newer else older


# --- Arguments ---------------------------------------------------------------------------------


_FIELDS: Final = ("problem_type", *LABEL_FIELDS)
"""The options of a head that are fields of its configuration."""

_REFUSED: Final[Mapping[str, str]] = {
    "device_map": 'give device="cuda" or another device; a model is on one device',
    "load_in_8bit": 'give dtype="bfloat16" for half the memory',
    "load_in_4bit": 'give dtype="bfloat16" for half the memory',
    "quantization_config": 'give dtype="bfloat16" for half the memory',
    "output_loading_info": "read model.load_report afterwards",
    "state_dict": "call model.load_state_dict(...) afterwards",
    "from_tf": "convert the checkpoint to safetensors first",
    "from_flax": "convert the checkpoint to safetensors first",
    "max_memory": "a model is on one device: give device=",
    "offload_folder": "weights are memory-mapped: leave it out",
    "offload_state_dict": "weights are memory-mapped: leave it out",
    "variant": "name the file model.safetensors, or give dtype=",
    "tp_plan": "a model is on one device: give device=",
    "gguf_file": "convert the checkpoint to safetensors first",
    "adapter_kwargs": "call load_lora(model.graph, folder) afterwards",
}
"""Arguments of transformers that no model takes here -> what to do instead."""

_WITHOUT_EFFECT: Final = ("low_cpu_mem_usage", "use_safetensors", "weights_only")
"""Arguments that ask for what flodl always does; only False would ask for something else."""


def settled(
    options: Mapping[str, Any], method: str = "from_pretrained"
) -> tuple[Access, dict[str, Any]]:
    """How to reach the checkpoint, and the other arguments in the spelling of flodl.

    Args:
        options: The arguments of the caller.
        method: The function that takes them, for messages.

    Raises:
        TypeError: flodl has nothing like an argument; the message says what to do instead.
        ValueError: An argument has a value that flodl does not support, or two contradict.
    """
    access, found = reach(options, _REFUSED, method)
    for name in _WITHOUT_EFFECT:
        if found.pop(name, None) is False and name != "low_cpu_mem_usage":
            raise ValueError(f"{name}=False: flodl only reads safetensors")
    if not found.keys().isdisjoint(("dtype", "torch_dtype")):
        _settle_dtype(found)
    if "attn_implementation" in found:
        check_attention(found.pop("attn_implementation"))
    if found.get("device") is not None:
        found["device"] = select_device(found["device"])  # refuse it before any download
    return access, found


def _settle_dtype(found: dict[str, Any]) -> None:
    dtype, older = found.pop("dtype", None), found.pop("torch_dtype", None)
    if None not in (dtype, older) and _plain_name(dtype) != _plain_name(older):
        raise ValueError(f"dtype and torch_dtype contradict each other: {dtype!r} and {older!r}")
    dtype = older if dtype is None else dtype
    if dtype is not None and dtype != "auto":
        found["dtype"] = dtype


def _plain_name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
