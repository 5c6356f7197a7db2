"""Describe a checkpoint without reading its weights.

Only the header of a file is read. Of a file on the Hub, only the bytes of the header are
downloaded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from flodl.checkpoint.header import StoredTensor, described
from flodl.hf.build import build
from flodl.hf.errors import CheckpointFormatError
from flodl.hf.families import AutoConfig, EncoderConfig
from flodl.hf.head_kind import saved_head
from flodl.hf.hub import Repository, locate
from flodl.hf.opening import with_head
from flodl.hf.source import CONFIG, WEIGHTS, Access, Checkpoint, read_text
from flodl.hf.weights.fill import match
from flodl.hf.weights.keys import keys_have_pooler, slots_of
from flodl.hf.weights.stored import StoredFiles


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
        renamed = f", {self.keys.renamed} renamed" if self.keys.renamed else ""
        rows = [
            ("checkpoint", self.name + (f" at {self.commit}" if self.commit else "")),
            ("family", self.family),
            ("head", self.head + (f" ({self.architecture})" if self.architecture else "")),
            *([("labels", ", ".join(self.labels))] if self.labels else []),
            ("tensors", f"{self.tensors} in {self.files} file{'s' if self.files > 1 else ''}"),
            ("parameters", f"{self.parameters:,}, {self.bytes:,} bytes"),
            ("dtypes", dtypes),
            ("keys", f"{'fit' if self.keys.fits else 'do not fit'} the model{renamed}"),
        ]
        return "".join(f"{label:<12}{text}\n" for label, text in rows) + self._lists()

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


def inspect_checkpoint(src: str | Path, revision: str | None = None) -> Inspection:
    """Describe the content of a checkpoint.

    Args:
        src: A repository or directory.
        revision: Branch, tag or commit of a repository.

    Raises:
        ConfigError: Its configuration describes no model that flodl has.
        CheckpointFormatError: A header is broken, or the configuration is not UTF-8.
        PickleOnlyError: It has no safetensors files.
        HubError: It cannot be reached.
        FileNotFoundError: The directory does not exist, or it has no weights.
    """
    checkpoint = locate(src, Access(revision=revision))
    text = read_text(checkpoint.require(CONFIG))
    config = AutoConfig.from_json_str(text, origin=f"{checkpoint.name}/{CONFIG}")
    tensors, files = _headers(checkpoint)
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
        keys=compare_keys(graph, found, tensors),
    )


def compare_keys(
    graph: nn.Module, config: EncoderConfig, tensors: Mapping[str, StoredTensor]
) -> KeyReport:
    """Compare the tensors of files with those of a model, by their names, shapes and types."""
    found = match(slots_of(graph), tensors, config)
    taken = [pair for fill in found.fills for pair in fill.sources.items()] if found.fits else []
    return KeyReport(
        fits=found.fits,
        renamed=sum(name != source for name, source in taken),
        missing=tuple(sorted(found.missing)),
        shapes=tuple(
            f"{key}: expected {list(wanted)}, found {list(there)}"
            for key, wanted, there in sorted(found.shapes)
        ),
        dtypes=tuple(f"{key}: {dtype}" for key, dtype in sorted(found.dtypes)),
        ignored=tuple(sorted(found.ignored)) if found.fits else (),
        unexpected=tuple(sorted(found.unused.values())),
    )


# --- Headers -------------------------------------------------------------------------------------


def _headers(checkpoint: Checkpoint) -> tuple[Mapping[str, StoredTensor], int]:
    """The tensors of all weight files, and the number of these files."""
    told = checkpoint.headers() if isinstance(checkpoint, Repository) else None
    if told is None:
        weights = checkpoint.weight_files()
        return StoredFiles(weights).tensors, len(weights.files)
    tensors = {}
    try:
        for key, one in (pair for header in told for pair in header.items()):
            fields = {"dtype": one.dtype, "shape": one.shape, "data_offsets": [*one.data_offsets]}
            tensors[key] = described(key, fields)
    except (TypeError, ValueError):
        raise CheckpointFormatError(f"{checkpoint.name}: {WEIGHTS} has no sound header") from None
    return tensors, len(told)
