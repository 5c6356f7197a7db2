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
from typing import Any, Final, Protocol, TypedDict

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
from flodl.hf.source import ADAPTER, CONFIG, Access, Checkpoint
from flodl.hf.text.call_options import check_options
from flodl.hf.tokenizer import PreTrainedTokenizerFast
from flodl.hf.weights.fill import HeadInit, LoadReport, fill
from flodl.hf.weights.keys import is_start_for, keys_have_pooler
from flodl.hf.weights.stored import StoredFiles
from flodl.log import warning

Source = str | os.PathLike[str]


class Shaped(Protocol):
    """The description of a tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""


_CLASSIFIERS = ("classifier.weight", "classifier.out_proj.weight")


class Opening(TypedDict, total=False):
    """Keyword arguments of every ``from_pretrained``.

    Attributes:
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


def access_of(options: Mapping[str, Any]) -> Access:
    """The arguments that say how to reach a checkpoint."""
    return Access(
        options.get("revision"),
        options.get("token"),
        options.get("cache_dir"),
        options.get("local_files_only", False),
        options.get("subfolder", ""),
    )


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
        options: The arguments of ``from_pretrained``: :class:`Opening` for an encoder without a
            head, else :class:`HeadOpening`.
        family: The expected family; None for any of the seven.

    Raises:
        FlodlError: One of ``flodl.hf.errors``.
        FileNotFoundError: The directory does not exist, or files are missing in it.
    """
    asked = settled(options, Opening if kind is HeadKind.BASE else HeadOpening)
    checkpoint = locate(src, access_of(asked))
    config = read_config(checkpoint, family, kind, asked)
    kind = kind or saved_head(config)
    stored = StoredFiles(checkpoint.weight_files(), asked.get("key_mapping"))
    config = with_head(config, kind, stored.tensors, new_head=asked.get("head_init") == "replace")
    graph = build(config, kind, pooler=keys_have_pooler(stored.tensors))
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
        named = any(asked.get(name) is not None for name in LABEL_FIELDS)
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
    """The configuration of a checkpoint, with the labels and the problem type of the caller.

    Args:
        checkpoint: A directory or repository.
        family: The expected family; None for any of the seven.
        kind: The head; None for that of the class which the configuration names.
        asked: The arguments of the caller.

    Raises:
        ConfigError: There is no configuration, it cannot be built, or it is of another family. Or
            a value of the caller is impossible, or two contradict each other.
        FileNotFoundOnHub: The repository has no configuration.
    """
    text, origin = checkpoint.text(CONFIG), f"{checkpoint.name}/{CONFIG}"
    if text is None:
        _refuse_adapter(checkpoint)
        error = ConfigError if checkpoint.is_local else FileNotFoundOnHub
        raise error(f"{checkpoint.name}: there is no {CONFIG}, which says what the model is")
    fields = {}
    for name in ("problem_type", *(LABEL_FIELDS if kind is None or kind.labelled else ())):
        if asked is not None and asked.get(name) is not None:
            fields[name] = asked[name]
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
    tensors: Mapping[str, Shaped],
    *,
    new_head: bool = False,
) -> EncoderConfig:
    """The configuration of a model with this head: its class, its labels and its variant.

    Here it is decided how many classes there are and what they are called. Everything after this
    reads ``config.id2label``.

    Args:
        config: That of a checkpoint.
        kind: The head.
        tensors: The descriptions of the tensors of the checkpoint, by key; none for a new model.
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


_REFUSED: Final[Mapping[str, str]] = {
    "device_map": 'give device="cuda" or another device; a model is on one device',
    "load_in_8bit": 'give dtype="bfloat16" for half the memory',
    "load_in_4bit": 'give dtype="bfloat16" for half the memory',
    "quantization_config": 'give dtype="bfloat16" for half the memory',
    "trust_remote_code": "flodl never runs code of a checkpoint: leave it out",
    "use_auth_token": "give token=",
    "output_hidden_states": "ask in the call: model(**batch, output_hidden_states=True)",
    "output_attentions": "ask in the call: model(**batch, output_attentions=True)",
    "output_loading_info": "read model.load_report afterwards",
    "config": "give num_labels=, id2label= or problem_type=; config.json says everything else",
    "state_dict": "call model.load_state_dict(...) afterwards",
    "from_tf": "convert the checkpoint to safetensors first",
    "from_flax": "convert the checkpoint to safetensors first",
    "max_memory": "a model is on one device: give device=",
    "offload_folder": "weights are memory-mapped: leave it out",
    "force_download": "remove the repository from the cache first",
    "proxies": "set HTTPS_PROXY",
}
"""Arguments that flodl does not have -> what to do instead; None and False ask for nothing."""

_WITHOUT_EFFECT: Final = ("low_cpu_mem_usage", "use_safetensors", "return_dict")
"""Arguments that ask for what flodl always does; only False would ask for something else."""


def settled(
    options: Mapping[str, Any],
    known: Any,
    method: str = "from_pretrained",
    otherwise: str = "",
) -> dict[str, Any]:
    """The same arguments in the spelling of flodl.

    Args:
        options: The arguments of the caller.
        known: The typed dictionary of the arguments that flodl takes.
        method: The function that takes them, for messages.
        otherwise: What to do for arguments that are unknown, for messages.

    Raises:
        TypeError: flodl has nothing like an argument; the message says what to do instead.
        ValueError: An argument has a value that flodl does not support, or two contradict.
    """
    found = {}
    for name, value in options.items():
        if _asks_for_nothing(name, value):
            continue
        if name in _REFUSED:
            raise TypeError(f"{method}() takes no argument {name!r}: {_REFUSED[name]}")
        found[name] = value
    if not found.keys().isdisjoint(("dtype", "torch_dtype")):
        _settle_dtype(found)
    if "attn_implementation" in found:
        check_attention(found.pop("attn_implementation"))
    if found.pop("ignore_mismatched_sizes", False):
        found["head_init"] = "replace"
    if found:
        check_options(found, known, method, otherwise)
    if found.get("device") is not None:
        found["device"] = select_device(found["device"])  # refuse it before any download
    return found


def _asks_for_nothing(name: str, value: object) -> bool:
    if name in _WITHOUT_EFFECT:
        if value is False and name != "low_cpu_mem_usage":
            raise ValueError(f"{name}=False: flodl only reads safetensors and returns named values")
        return True
    return name in _REFUSED and (value is None or value is False)


def _settle_dtype(found: dict[str, Any]) -> None:
    dtype, older = found.pop("dtype", None), found.pop("torch_dtype", None)
    if None not in (dtype, older) and _plain_name(dtype) != _plain_name(older):
        raise ValueError(f"dtype and torch_dtype contradict each other: {dtype!r} and {older!r}")
    dtype = older if dtype is None else dtype
    if dtype is not None and dtype != "auto":
        found["dtype"] = dtype


def _plain_name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
