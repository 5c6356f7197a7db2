"""Describe a checkpoint without reading its weights.

Only the header of a file is read. Of a file on the Hub, only the bytes of the header are
downloaded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn

from flodl.checkpoint.header import StoredTensor, described
from flodl.hf import hub_errors
from flodl.hf.build import build
from flodl.hf.errors import (
    CheckpointFormatError,
    CheckpointMismatchError,
    FileNotFoundOnHub,
    HubError,
    HubOffline,
    need,
)
from flodl.hf.families import AutoConfig, EncoderConfig
from flodl.hf.head_kind import saved_head
from flodl.hf.opening import with_head
from flodl.hf.source import (
    CONFIG,
    INDEX,
    WEIGHTS,
    Access,
    Checkpoint,
    locate,
    read_text,
    shard_names,
)
from flodl.hf.weights.fill import match
from flodl.hf.weights.keys import keys_have_pooler, slots_of
from flodl.hf.weights.stored import Stored, StoredFiles


@dataclass(frozen=True, slots=True)
class KeyReport:
    """The comparison of the tensors of a checkpoint and of its model; all lists are sorted.

    Attributes:
        fits: Whether the model can be loaded.
        renamed: Number of tensors with another name in the model.
        missing: Tensors of the model that the checkpoint lacks.
        shapes: Tensors of another shape, each as one line.
        dtypes: Weights that hold no floats, each as one line.
        ignored: Tensors that the model does not need, as is usual for them.
        unexpected: Further tensors that have no place in the model.
    """

    fits: bool
    renamed: int = 0
    missing: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inspection:
    """The content of a checkpoint.

    Attributes:
        name: The repository or directory.
        commit: The commit of a repository.
        family: ``bert``, ``deberta-v2``, ....
        head: ``base``, ``seqcls``, ``tokcls``, ``qa``, ``mlm``.
        architecture: The class named in the configuration; empty if it names none.
        labels: Names of the classes of a classifier.
        files: Number of weight files.
        tensors: Number of tensors in the files.
        parameters: Number of values in the tensors.
        bytes: Size of the tensors, without headers.
        dtypes: Number of tensors of each type, by its name in the files.
        keys: The comparison with the tensors of the model.
    """

    name: str
    commit: str | None
    family: str
    head: str
    architecture: str
    labels: tuple[str, ...]
    files: int
    tensors: int
    parameters: int
    bytes: int
    dtypes: Mapping[str, int]
    keys: KeyReport

    def as_json(self) -> dict[str, Any]:
        """The content as plain data."""
        return asdict(self)

    def as_text(self) -> str:
        """The content as lines of text."""
        dtypes = ", ".join(f"{count} {dtype}" for dtype, count in self.dtypes.items())
        rows = [
            ("checkpoint", self.name + (f" at {self.commit}" if self.commit else "")),
            ("family", self.family),
            ("head", self.head + (f" ({self.architecture})" if self.architecture else "")),
            *([("labels", ", ".join(self.labels))] if self.labels else []),
            ("tensors", f"{self.tensors} in {self.files} file{'s' if self.files > 1 else ''}"),
            ("parameters", f"{self.parameters:,}, {self.bytes:,} bytes"),
            ("dtypes", dtypes),
            ("keys", self._told_keys()),
        ]
        return "".join(f"{label:<12}{text}\n" for label, text in rows) + self._lists()

    def _told_keys(self) -> str:
        found = self.keys
        more = [f"{found.renamed} renamed"] if found.renamed else []
        return ", ".join([f"{'fit' if found.fits else 'do not fit'} the model", *more])

    def _lists(self) -> str:
        lists = {
            "missing": self.keys.missing,
            "of another shape": self.keys.shapes,
            "not of floats": self.keys.dtypes,
            "unexpected": self.keys.unexpected,
            "not needed": self.keys.ignored,
        }
        return "".join(
            f"  {len(names)} {what}:\n" + "".join(f"    {name}\n" for name in names)
            for what, names in lists.items()
            if names
        )


def inspect_checkpoint(src: str | Path, access: Access | None = None) -> Inspection:
    """Describe the content of a checkpoint.

    Args:
        src: A repository or directory.
        access: How to reach a repository.

    Raises:
        ConfigError: Its configuration describes no model that flodl has.
        CheckpointFormatError: A header is broken, or the configuration is not UTF-8.
        PickleOnlyError: It has no safetensors files.
        HubError: It cannot be reached.
        FileNotFoundError: The directory does not exist, or it has no weights.
    """
    access = access or Access()
    checkpoint = locate(src, access)
    text = read_text(checkpoint.require(CONFIG))
    config = AutoConfig.from_json_str(text, origin=f"{checkpoint.name}/{CONFIG}")
    stored, files = _headers(checkpoint, access)
    tensors = stored.tensors
    kind = saved_head(config)
    found = with_head(config, kind, tensors)
    graph = build(found, pooler=keys_have_pooler(tensors))
    return Inspection(
        name=checkpoint.name,
        commit=checkpoint.commit,
        family=config.model_type,
        head=kind.value,
        architecture=config.architectures[0] if config.architectures else "",
        labels=found.labels_for() if kind.labelled else (),
        files=files,
        tensors=len(tensors),
        parameters=sum(math.prod(one.shape) for one in tensors.values()),
        bytes=sum(one.end - one.begin for one in tensors.values()),
        dtypes=dict(sorted(Counter(one.dtype for one in tensors.values()).items())),
        keys=compare_keys(graph, found, stored),
    )


def compare_keys(graph: nn.Module, config: EncoderConfig, stored: Stored) -> KeyReport:
    """Compare the tensors of files with those of a model, by their names, shapes and types."""
    try:
        plan = match(slots_of(graph), stored, config)
    except CheckpointMismatchError as wrong:
        return KeyReport(
            fits=False,
            missing=tuple(wrong.missing),
            shapes=tuple(
                f"{key}: expected {list(wanted)}, found {list(there)}"
                for key, wanted, there in wrong.shape_mismatches
            ),
            dtypes=tuple(f"{key}: {dtype}" for key, dtype in wrong.bad_dtypes),
            unexpected=tuple(wrong.unused),
        )
    taken = [pair for fill in plan.fills for pair in fill.sources.items()]
    return KeyReport(
        fits=True,
        renamed=sum(name != source for name, source in taken),
        ignored=plan.ignored,
        unexpected=plan.unexpected,
    )


# Headers


@final
class _Described:
    """Tensors for which only the description was downloaded."""

    files: tuple[Path, ...] = ()

    def __init__(self, where: str, tensors: Mapping[str, StoredTensor]) -> None:
        self.where = where
        self.tensors = tensors

    def read(self, keys: Iterable[str]) -> dict[str, Tensor]:
        """Nothing: only descriptions were downloaded."""
        raise HubError(f"of {self.where} only the headers were fetched, not {', '.join(keys)}")


def _headers(checkpoint: Checkpoint, access: Access) -> tuple[Stored, int]:
    """The headers of all weight files, and the number of files."""
    if not checkpoint.is_local:
        try:
            there = Access(
                revision=checkpoint.commit,
                cache_dir=access.cache_dir,
                local_files_only=True,
                subfolder=access.subfolder,
            )
            weights = locate(checkpoint.name, there).weight_files()
        except HubOffline:
            return _fetched(checkpoint, access)
    else:
        weights = checkpoint.weight_files()
    return StoredFiles(weights), len(weights.files)


def _fetched(checkpoint: Checkpoint, access: Access) -> tuple[Stored, int]:
    """The headers of files that exist on the Hub only."""
    try:
        tensors = _fetched_header(checkpoint, access, WEIGHTS)
        return _Described(checkpoint.name, tensors), 1
    except FileNotFoundOnHub:
        index = checkpoint.file(INDEX)
    if index is None:
        weights = checkpoint.weight_files()  # raises an error that says what is there instead
        return StoredFiles(weights), len(weights.files)
    shards = shard_names(index)
    merged: dict[str, StoredTensor] = {}
    for name in shards:
        merged |= _fetched_header(checkpoint, access, name)
    return _Described(checkpoint.name, merged), len(shards)


def _fetched_header(checkpoint: Checkpoint, access: Access, name: str) -> dict[str, StoredTensor]:
    hub = need("huggingface_hub")
    folder = access.subfolder.rstrip("/")
    full = f"{folder}/{name}" if folder else name
    try:
        header = hub.HfApi().parse_safetensors_file_metadata(
            checkpoint.name, full, revision=checkpoint.commit, token=access.token
        )
    # Besides its own error, the errors that its parser raises for a header of another form.
    except (
        hub.errors.SafetensorsParsingError,
        AttributeError,
        TypeError,
        RecursionError,
    ):
        raise _unsound(checkpoint, full) from None
    except Exception as error:
        raise _translated(error, checkpoint, full) from None
    try:
        return {key: _checked(key, one) for key, one in header.tensors.items()}
    except (TypeError, ValueError):
        raise _unsound(checkpoint, full) from None


def _checked(key: str, one: Any) -> StoredTensor:
    """The description of a tensor by the Hub's library, checked like one of a local file."""
    offsets = list(one.data_offsets)
    return described(key, {"dtype": one.dtype, "shape": one.shape, "data_offsets": offsets})


def _unsound(checkpoint: Checkpoint, full: str) -> CheckpointFormatError:
    return CheckpointFormatError(f"{checkpoint.name}: {full} has no sound header")


def _translated(error: Exception, checkpoint: Checkpoint, full: str) -> Exception:
    settings = need("huggingface_hub.constants")
    endpoint = hub_errors.without_credentials(settings.ENDPOINT)
    commit = checkpoint.commit or ""
    asked = hub_errors.Asked(checkpoint.name, commit, full, endpoint, settings.HF_HUB_CACHE)
    failure = hub_errors.translated(error, asked)
    if isinstance(failure, hub_errors.Unreachable):
        return HubOffline(f"{checkpoint.name}: {full} is not in the cache, and {failure}")
    return failure
