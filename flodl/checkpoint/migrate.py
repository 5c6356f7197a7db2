"""Rename the tensors of a checkpoint for a model whose modules have other names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torch import Tensor

from flodl.checkpoint.container import DIGEST, EXTRA, TRAINING, Container, Entry
from flodl.checkpoint.extra_state import extra_name, stored_extra
from flodl.checkpoint.files import is_compressed, read_file, read_stream, writing
from flodl.checkpoint.forms import FORMS, Parted, memory_of
from flodl.checkpoint.store import (
    NamedTensors,
    match_names,
    own_strings,
    tensors_by_name,
    write_parted,
)


@dataclass(frozen=True, slots=True)
class MigrateReport:
    """The result of a migration for every tensor of the file and of the model.

    Attributes:
        unchanged: Model tensors found by their own name, in model order.
        remapped: ``(old name, new name)`` of tensors found by shape and dtype, in model order.
        dropped: Stored tensors without a match in the model, in file order.
        missing: Model tensors without a match; the new file does not have them.
        ambiguous: New names in ``remapped`` with several candidates. Check them by hand: the file
            order decided.
    """

    unchanged: list[str]
    remapped: list[tuple[str, str]]
    dropped: list[str]
    missing: list[str]
    ambiguous: list[str]

    @property
    def is_complete(self) -> bool:
        """Whether nothing was dropped and nothing is missing."""
        return not self.dropped and not self.missing

    def __str__(self) -> str:
        """Return one line per tensor, grouped under headings with their number."""
        sections = {
            "unchanged": self.unchanged,
            "remapped": [f"{old} -> {new}" for old, new in self.remapped],
            "dropped": self.dropped,
            "missing": self.missing,
            "ambiguous": self.ambiguous,
        }
        return "\n".join(
            line
            for heading, names in sections.items()
            if names
            for line in (f"{heading} ({len(names)}):", *(f"  {name}" for name in names))
        )


def migrate_checkpoint(
    src: IO[bytes], dst: IO[bytes], params: NamedTensors, buffers: NamedTensors
) -> MigrateReport:
    """Write the tensors of one container into another, with a model's names.

    A model tensor first takes the stored tensor of its name, if the shapes are equal. Then every
    remaining model tensor takes the first remaining stored tensor with its shape and dtype. Values
    are copied unchanged; the model is not changed. The new container has no structural hash, so
    every architecture may load it. Label and further strings are kept.

    Args:
        src: A container of version 3 or a binary checkpoint of the Rust flodl (versions 1 and 2),
            compressed or plain.
        dst: Stream for the new container.
        params: ``(name, tensor)`` pairs of the model; plain ``named_parameters()`` names are
            qualified.
        buffers: The same for buffers.

    Raises:
        ValueError: ``src`` and ``dst`` are the same, or a name is given twice.
        CheckpointError: The source is truncated, damaged, of another format or another version.
    """
    if src is dst:
        raise ValueError("src and dst are the same stream: a migration needs a second one to write")
    source = read_stream(src, legacy=True)
    matches, report = _match(source, tensors_by_name(params, buffers))
    _write(dst, source, matches, rewindable=False)
    return report


def migrate_checkpoint_file(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    params: NamedTensors,
    buffers: NamedTensors,
) -> MigrateReport:
    """Write the tensors of the file ``src`` into ``dst``; see :func:`migrate_checkpoint`.

    ``dst`` is replaced atomically; missing parent folders are created. A path ending in ``.gz`` is
    compressed. Whether ``src`` is compressed is detected from its content.

    Raises:
        ValueError: ``src`` and ``dst`` are the same file, or a name is given twice.
        CheckpointError: ``src`` is not a valid checkpoint, or ``dst`` cannot be written.
    """
    if _is_same_file(Path(src), Path(dst)):
        raise ValueError(
            f"src and dst are the same file {os.fspath(src)}: choose another dst, so that the "
            "source stays if the result is not the one meant"
        )
    source = read_file(src, legacy=True)
    matches, report = _match(source, tensors_by_name(params, buffers))
    with writing(dst) as stream:
        _write(stream, source, matches, rewindable=not is_compressed(dst))
    return report


def _is_same_file(src: Path, dst: Path) -> bool:
    if src.exists() and dst.exists():
        return src.samefile(dst)
    return os.path.realpath(src) == os.path.realpath(dst)


def _match(
    source: Container, model: Mapping[str, Tensor]
) -> tuple[dict[str, Entry], MigrateReport]:
    """The stored tensor of every model tensor with a match, in model order."""
    stored = source.header.model_entries
    named = match_names(source, model).items()
    found = {name: entry for name, entry in named if entry.shape == model[name].shape}
    unchanged = list(found)
    # Further names of a tied tensor use the entry of the first instead of an unrelated one.
    by_memory = {memory_of(model[name]): entry for name, entry in found.items()}
    used = {entry.name for entry in found.values()}
    left = [entry for entry in stored if entry.name not in used]
    remapped, missing, ambiguous = [], [], []
    for name, tensor in model.items():
        if name in found:
            continue
        memory = memory_of(tensor)
        entry = by_memory.get(memory)
        if entry is None:
            candidates = [entry for entry in left if _is_alike(entry, tensor)]
            entry = next((entry for entry in candidates if entry.name not in used), None)
            if len(candidates) > 1 and entry is not None:
                ambiguous.append(name)
        if entry is None:
            missing.append(name)
            continue
        found[name] = by_memory[memory] = entry
        used.add(entry.name)
        remapped.append((entry.name, name))
    dropped = [entry.name for entry in stored if entry.name not in used]
    # The modules that could take them have other names now.
    dropped += map(extra_name, stored_extra(source))
    in_model_order = {name: found[name] for name in model if name in found}
    return in_model_order, MigrateReport(unchanged, remapped, dropped, missing, ambiguous)


def _is_alike(entry: Entry, tensor: Tensor) -> bool:
    alike = entry.shape == tensor.shape and entry.dtype == tensor.dtype
    return alike and entry.layout is tensor.layout


def _write(
    dest: IO[bytes], source: Container, matches: Mapping[str, Entry], *, rewindable: bool
) -> None:
    views = {entry.name: source.tensor(entry) for entry in matches.values()}
    old = source.header.metadata
    strings = {
        k: text for k, text in old.items() if k not in {DIGEST, EXTRA, TRAINING, FORMS, "aliases"}
    }
    strings |= own_strings("", old.get("label", ""))
    named = {name: views[entry.name] for name, entry in matches.items()}
    write_parted(dest, Parted.of(named), strings, rewindable=rewindable)
