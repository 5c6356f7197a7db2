"""Export a model as a directory that any tool for Hugging Face checkpoints loads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from fdl.base.files import put as put_file
from flodl.checkpoint import checkpoint_metadata
from flodl.checkpoint.files import config_sidecar, read_file_header
from flodl.errors import FlodlError, StateError
from flodl.graph import Graph
from flodl.hf.build import build
from flodl.hf.config import json_text
from flodl.hf.errors import CheckpointMismatchError, ConfigError, first_of
from flodl.hf.families import AutoConfig, DebertaV2Config, EncoderConfig
from flodl.hf.head_kind import HeadKind, named_head
from flodl.hf.lora import PARTS, adapted_layers
from flodl.hf.opening import open_model, with_head
from flodl.hf.sentence_settings import COMPANIONS, companions_of
from flodl.hf.source import (
    CONFIG,
    INDEX,
    WEIGHTS,
    Checkpoint,
    Directory,
    copy_files,
    new_directory,
    read_text,
)
from flodl.hf.text.files import OWN_NAMES
from flodl.hf.tokenizer import PreTrainedTokenizerFast
from flodl.hf.weights.fill import LoadReport
from flodl.hf.weights.keys import keys_have_pooler, put, slots_of
from flodl.hf.weights.stored import promoted
from flodl.hf.weights.writing import save_safetensors_file_from_graph

SOURCE_CONFIG = "config.source.json"
SOURCE_REPO, SOURCE_REVISION = "flodl_source_repo", "flodl_source_revision"

_OF_ELSEWHERE = ("_name_or_path", "quantization_config")


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote.

    Attributes:
        directory: The directory.
        architecture: The class that other tools will load it as.
        tensors: Number of tensors in the weights.
        files: All files written, by their names in the directory.
        notes: Notes for the user, one line each.
    """

    directory: Path
    architecture: str
    tensors: int
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def as_text(self) -> str:
        """The export as lines of text."""
        rows = [f"{self.directory}: {self.architecture}, {self.tensors} tensors"]
        return "".join(f"{line}\n" for line in [*rows, *(f"  {name}" for name in self.files)])


def write_model(
    graph: Graph,
    config_json: str,
    out_dir: str | Path,
    *,
    companions: Checkpoint | None = None,
    max_shard_size: int | str | None = None,
) -> tuple[str, ...]:
    """Write a model as ``model.safetensors`` and ``config.json``.

    Each file appears only when it is complete. If the export fails, a newly created directory is
    removed again. The same model gives the same bytes. An unchanged model gives the bytes that it
    was loaded from.

    Args:
        graph: A model of ``flodl.hf``.
        config_json: Its configuration, for instance ``graph.source_config``. All its fields are
            kept, except those about another location or another dtype.
        out_dir: The directory; created with its parents.
        companions: The checkpoint to copy the tokenizer's files from.
        max_shard_size: Bytes of tensors in one file, as a number or like ``"5GB"``.

    Returns:
        The files written, by their names in the directory.

    Raises:
        ConfigError: The configuration does not describe a model.
        OSError: The system refused.
        ValueError: ``max_shard_size`` is not a size.
    """
    out = Path(out_dir)
    config = AutoConfig.from_json_str(config_json)
    text = exported_config(config, graph)
    with new_directory(out):
        save_safetensors_file_from_graph(graph, out / WEIGHTS, max_shard_size=max_shard_size)
        copied = {} if companions is None else companions_of(companions)
        copy_files(copied, out)
        put_file(out / CONFIG, text.encode())
    written = Directory(out).weight_files()
    index = [] if written.index is None else [INDEX]
    return (CONFIG, *(file.name for file in written.files), *index, *copied)


def save_model(
    graph: Graph,
    config: EncoderConfig,
    out: Path,
    *,
    tokenizer: PreTrainedTokenizerFast | None = None,
    force: bool = False,
    max_shard_size: int | str | None = None,
) -> tuple[str, ...]:
    """Save a head (``save_pretrained``): weights, configuration and tokenizer.

    Args:
        graph: The model.
        config: Its configuration.
        out: The directory.
        tokenizer: Written beside the model; files of an earlier tokenizer are removed.
        force: Replace an existing model.
        max_shard_size: See :func:`write_model`.

    Returns:
        The files written, by their names in the directory.

    Raises:
        FlodlError: The directory holds a model already, or layers have adapters that are not
            merged.
        OSError: The system refused.
        ValueError: ``max_shard_size`` is not a size.
    """
    if adapted_layers(graph):
        raise StateError(
            "the model has adapters, which would be lost where it is opened: call merge_lora "
            "before, or write them alone with save_lora"
        )
    if not force:
        _refuse_to_replace(out, "force=True replaces them, or name another directory")
    text = _without_source(config).to_json_string()
    files = write_model(graph, text, out, max_shard_size=max_shard_size)
    if tokenizer is None:
        return files
    written = tuple(file.name for file in tokenizer.save(out))
    for name in OWN_NAMES - set(written):
        (out / name).unlink(missing_ok=True)
    return (*files, *written)


def export_command(
    *,
    hub: str | None,
    checkpoint: Path | None,
    out: Path,
    head: HeadKind | None = None,
    config: Path | None = None,
    revision: str | None = None,
    dtype: str | None = None,
    max_shard_size: str | None = None,
    preserve_source_config: bool = False,
    force: bool = False,
) -> Exported:
    """Run ``fdl flodl-hf export``.

    Args:
        hub: Repository or directory of the model; without it, ``checkpoint`` must be given.
        checkpoint: A file of ``graph.save_checkpoint``.
        out: The directory to write.
        head: With ``hub``: the head; None for the head of the class the checkpoint was saved from.
        config: With ``checkpoint``: its configuration, instead of the file beside it.
        revision: With ``hub``: branch, tag or commit.
        dtype: Convert all tensors; None keeps their types.
        max_shard_size: See :func:`write_model`.
        preserve_source_config: With ``checkpoint``: also write the original configuration.
        force: Replace an existing export.

    Raises:
        FlodlError: The directory holds an export already, or the model cannot be loaded.
        OSError: The system refused.
    """
    if not force:
        _refuse_to_replace(out, "--force replaces them, or name another --out")
    kept = None
    if checkpoint is None:
        opened = open_model(str(hub), head, {"revision": revision, "dtype": dtype})
        graph, companions = opened.graph, opened.checkpoint
        fields = opened.config.source
        if not companions.is_local:
            fields |= {SOURCE_REPO: companions.name, SOURCE_REVISION: companions.commit}
        text = json_text(fields)
        report: LoadReport = graph.__dict__["load_report"]
        notes = _listed("left out", report.unexpected)
    else:
        kept = _text_of_config(checkpoint, config)
        graph, notes = load_trained(checkpoint, kept, str(config or config_sidecar(checkpoint)))
        if dtype is not None:
            graph.to(getattr(torch, dtype))
        text, companions = str(graph.source_config), Directory(checkpoint.resolve().parent)
    files = write_model(graph, text, out, companions=companions, max_shard_size=max_shard_size)
    if preserve_source_config and kept is not None:
        put_file(out / SOURCE_CONFIG, kept.encode())
        files = (*files, SOURCE_CONFIG)
    if not any(name in COMPANIONS for name in files):
        notes.append("no tokenizer files were found: the export works on token ids only")
    architecture = AutoConfig.from_json_str(text).architectures[0]
    tensors = len({id(slot.tensor) for slot in slots_of(graph)})
    return Exported(out, architecture, tensors, files, tuple(notes))


def load_trained(checkpoint: Path, config_json: str, origin: str) -> tuple[Graph, list[str]]:
    """Rebuild a model that a training saved.

    Args:
        checkpoint: A file of ``graph.save_checkpoint``.
        config_json: Its configuration.
        origin: The name of the configuration in messages.

    Returns:
        - The model, with its tensors in the dtypes they were saved in.
        - Notes: how many tensors were loaded, and which were left out.

    Raises:
        ConfigError: The configuration does not describe a model.
        CheckpointError: The file is not a checkpoint, not one of this model, or it holds adapters.
    """
    config = _without_source(AutoConfig.from_json_str(config_json, origin=origin))
    entries = read_file_header(checkpoint).model_entries
    stored = {entry.name.replace("/", "."): entry for entry in entries}
    if any(key.endswith(PARTS) for key in stored):
        raise CheckpointMismatchError(
            f"{checkpoint} holds adapters, which the export would leave out: load it into a model "
            "with the same add_lora, call merge_lora, and save that model with save_pretrained"
        )
    config = with_head(config, named_head(config), stored)
    graph = build(config, pooler=keys_have_pooler(stored), device="cpu")
    for slot in slots_of(graph):
        known = next((stored[key] for key in slot.keys if key in stored), None)
        if known is not None:
            put(slot.places, torch.empty(slot.tensor.shape, dtype=known.dtype))
    report = graph.load_checkpoint(checkpoint)
    if report.missing:
        raise CheckpointMismatchError(
            f"{checkpoint} is not a whole {config.architectures[0]}", missing=report.missing
        )
    graph.set_source_config(config.to_json_string())
    counts = f"{len(report.loaded)} tensors loaded, {len(report.skipped)} skipped, none missing"
    return graph.eval(), [f"{checkpoint.name}: {counts}", *_listed("skipped", report.skipped)]


def _listed(what: str, names: Iterable[str]) -> list[str]:
    listed = list(names)
    return [f"{what}: {first_of(listed)}"] if listed else []


# Configuration


def exported_config(config: EncoderConfig, graph: Graph) -> str:
    """The text of the exported configuration: that of the model, adjusted to the export."""
    if isinstance(config, DebertaV2Config) and named_head(config) is HeadKind.MLM:
        config = config.for_masked_lm(legacy=config.legacy)
    fields = config.source
    for key in _OF_ELSEWHERE:
        fields.pop(key, None)
    common = promoted(graph.state_dict().values()) or torch.float32
    dtype = str(common).removeprefix("torch.")
    fields["torch_dtype"] = dtype
    if "dtype" in fields:
        fields["dtype"] = dtype
    return json_text(fields)


def _without_source(config: EncoderConfig) -> EncoderConfig:
    """Remove the source repository: after training, the weights are no longer those of it."""
    fields = config.source
    known = [key for key in (SOURCE_REPO, SOURCE_REVISION) if fields.pop(key, None) is not None]
    return type(config).from_json_str(json_text(fields)) if known else config


def _text_of_config(checkpoint: Path, config: Path | None) -> str:
    """The configuration of a checkpoint: the named file, else the file beside it, else inside."""
    if config is not None:
        return read_text(config)
    sidecar = config_sidecar(checkpoint)
    if sidecar.is_file():
        return read_text(sidecar)
    inside = checkpoint_metadata(checkpoint).get("source_config")
    if inside is None:
        raise ConfigError(
            f"{checkpoint} has no configuration: {sidecar.name} is not beside it; name one with "
            "--config"
        )
    return inside


# Files


def _refuse_to_replace(out: Path, remedy: str) -> None:
    there = [name for name in (CONFIG, WEIGHTS, INDEX) if (out / name).exists()]
    if there:
        raise FlodlError(f"{out} holds {', '.join(there)} already: {remedy}")
