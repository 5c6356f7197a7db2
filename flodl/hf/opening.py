"""Open a directory or repository as a graph with its weights.

::

    locate -> config.json -> headers -> outline -> graph on the meta device -> load_weights

Before the configuration is checked, only the headers of the weights are read.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypedDict, cast

import torch

from flodl.graph import Graph
from flodl.hf.config_json import AutoConfig, EncoderConfig
from flodl.hf.configs.labels import Labels
from flodl.hf.device import known_device
from flodl.hf.errors import ConfigError, FileNotFoundOnHub
from flodl.hf.head_kind import HeadKind
from flodl.hf.keys import is_start_for
from flodl.hf.load_report import LoadReport
from flodl.hf.loading import HeadInit, load_weights
from flodl.hf.locate import locate
from flodl.hf.opening_options import settled
from flodl.hf.outline import LABELLED, head_of, outline
from flodl.hf.source import ADAPTER, CONFIG, Access, Checkpoint, WeightFiles
from flodl.hf.text.inputs import check_options
from flodl.hf.tokenizer import HfTokenizer
from flodl.hf.weights.stored import StoredFiles
from flodl.log import warning

Source = str | os.PathLike[str]


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
    tokenizer: HfTokenizer | None


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


def access_of(options: Opening) -> Access:
    """The arguments that say how to reach a checkpoint."""
    return Access(
        options.get("revision"),
        options.get("token"),
        options.get("cache_dir"),
        options.get("local_files_only", False),
        options.get("subfolder", ""),
    )


def read_config(checkpoint: Checkpoint, family: type[EncoderConfig] | None = None) -> EncoderConfig:
    """The configuration of a checkpoint.

    Args:
        checkpoint: A directory or repository.
        family: The expected family; None for any of the seven.

    Raises:
        ConfigError: There is no configuration, it cannot be built, or it is of another family.
        FileNotFoundOnHub: The repository has no configuration.
    """
    text, origin = checkpoint.text(CONFIG), f"{checkpoint.name}/{CONFIG}"
    if text is None:
        _refuse_adapter(checkpoint)
        error = ConfigError if checkpoint.is_local else FileNotFoundOnHub
        raise error(f"{checkpoint.name}: there is no {CONFIG}, which says what the model is")
    return (family or AutoConfig).from_json_str(text, origin=origin)


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


def open_model(
    src: Source,
    kind: HeadKind | None,
    options: HeadOpening,
    *,
    family: type[EncoderConfig] | None = None,
) -> Opened:
    """Build a model and load its weights.

    Args:
        src: Directory or repository.
        kind: The head; None for the head of the class that the checkpoint was saved from.
        options: The arguments of ``from_pretrained``.
        family: The expected family; None for any of the seven.

    Raises:
        FlodlError: One of ``flodl.hf.errors``.
        FileNotFoundError: The directory does not exist, or files are missing in it.
    """
    options = cast("HeadOpening", settled(options))
    check_options(options, HeadOpening, "from_pretrained")
    device = options.get("device")
    if device is not None:
        options = {**options, "device": known_device(device)}  # refuse it before any download
    checkpoint = locate(src, access_of(options))
    config = read_config(checkpoint, family)
    if options.get("problem_type") is not None:
        config = config.replace(problem_type=options.get("problem_type"))
    kind = kind or head_of(config)
    wanted = options.get("num_labels"), options.get("id2label")
    if kind in LABELLED and wanted != (None, None):
        config.labels_for(*wanted)  # refuse them before the weights are downloaded
    weights = checkpoint.weight_files()
    if mapping := options.get("key_mapping"):
        weights = replace(weights, key_mapping=mapping)
    shapes = {key: tensor.shape for key, tensor in StoredFiles(weights).tensors.items()}
    # Who names the classes wants a classifier of them, as in transformers. All heads that find
    # answers are alike, so an encoder is a start for one.
    named = kind in LABELLED and wanted != (None, None)
    finder = "classifier" if config.model_type == "modernbert" else "qa_outputs"
    started = kind is HeadKind.QA and is_start_for(finder, shapes, config.prefix)
    may_draw = options.get("head_init") is None and (named or started)
    if may_draw:
        options = {**options, "head_init": "random"}
    found = outline(
        config,
        shapes,
        kind,
        num_labels=wanted[0],
        id2label=wanted[1],
        new_head=options.get("head_init") == "replace",
    )
    graph = found.build()
    config = _fill(graph, weights, found.config, options, checkpoint.commit)
    if may_draw:
        _warn_of_new_head(graph, checkpoint)
    graph.set_source_config(config.to_json_string())
    return Opened(graph.eval(), config, checkpoint)


def open_encoder(
    src: Source,
    options: Opening,
    *,
    family: type[EncoderConfig] | None = None,
) -> Opened:
    """Open a checkpoint as an encoder without a head; see :func:`open_model`.

    It has a pooler if the checkpoint has one.
    """
    options = cast("Opening", settled(options))
    check_options(options, Opening, "from_pretrained")
    return open_model(src, HeadKind.BASE, cast("HeadOpening", options), family=family)


def _warn_of_new_head(graph: Graph, checkpoint: Checkpoint) -> None:
    report: LoadReport = graph.__dict__["load_report"]
    if report.initialised:
        warning(
            f"{checkpoint.name}: {', '.join(report.initialised)} are not in the checkpoint and "
            "were drawn: train the model before you use it"
        )


def _fill(
    graph: Graph,
    weights: WeightFiles,
    config: EncoderConfig,
    options: HeadOpening,
    commit: str | None,
) -> EncoderConfig:
    report = load_weights(
        graph,
        weights,
        config,
        dtype=options.get("dtype"),
        device=options.get("device"),
        head_init=options.get("head_init"),
        seed=options.get("seed"),
        commit=commit,
    )
    return config.replace(tie_word_embeddings=False) if report.untied else config
