"""Save named tensors, and load them back into the tensors of a model."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Any, Literal

import torch
from torch import Tensor, nn

from flodl.checkpoint.buffer_sizes import resizable
from flodl.checkpoint.container import (
    EXTRA,
    EXTRA_PREFIX,
    FORMAT,
    RESERVED,
    TRAINING,
    TRAINING_PREFIX,
    VERSION,
    Container,
    Entry,
    fetched,
    write_container,
)
from flodl.checkpoint.extra_state import (
    describe_extra,
    extra_name,
    extra_text,
    restored_on_error,
    set_extra_states,
    stored_extra,
)
from flodl.checkpoint.files import (
    config_sidecar,
    is_compressed,
    read_file,
    read_file_header,
    read_stream,
    writing,
)
from flodl.checkpoint.forms import CASTABLE, Parted, check_storable
from flodl.checkpoint.names import qualify
from flodl.checkpoint.sharded import Gathering, become, fill, gathering
from flodl.errors import ArchitectureMismatch, CheckpointError, ShapeMismatch

NamedTensors = Iterable[tuple[str, Tensor]]
OnShapeMismatch = Literal["error", "skip"]


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The result of a load.

    Attributes:
        loaded: Model tensors with values from the file, in model order. Extra state of modules
            follows, as ``module/_extra_state``; the same holds for the other lists.
        skipped: Stored tensors without a match in the model, in file order.
        missing: Model tensors that kept their values, in model order.
    """

    loaded: list[str]
    skipped: list[str]
    missing: list[str]


def save_checkpoint(
    dest: IO[bytes],
    params: NamedTensors,
    buffers: NamedTensors,
    hash: str | None = None,
    *,
    label: str = "",
    config: Mapping[str, Any] | None = None,
    epoch: int | None = None,
    metrics: Mapping[str, float] | None = None,
    source_config: str | None = None,
    metadata: Mapping[str, str] | None = None,
    extra_state: Mapping[str, Any] | None = None,
) -> None:
    """Write a container to a binary stream, which needs only the method ``write``.

    Equal arguments give equal bytes: there are no time stamps and no random order. A tensor with
    several names is stored under the first; the others are recorded as aliases. DTensors are saved
    as by :func:`save_checkpoint_file`, to the stream of the lowest rank.

    Args:
        dest: Where to write.
        params: ``(name, tensor)`` pairs; plain ``named_parameters()`` names are qualified.
        buffers: The same for buffers.
        hash: Structural hash of the graph, checked when loading.
        label: Name of the graph; for information, never checked.
        config: Configuration of the run, as JSON data; kept as one string under the metadata key
            ``config``.
        epoch: Number of completed epochs.
        metrics: The last metrics, kept as JSON; values that are not finite become null.
        source_config: Text of the model's configuration, kept unchanged.
        metadata: Further strings to keep; :func:`checkpoint_metadata` returns them.
        extra_state: What modules return from ``get_extra_state``, by path of the module.

    Raises:
        ValueError: A name or a metadata key is given twice, or a tensor cannot be stored. Or the
            metadata have a reserved key or a value that is not a string, or ``config`` is not JSON
            data.
        CheckpointError: The tensors changed while they were written.
    """
    strings = checkpoint_strings(hash, label, config, epoch, metrics, source_config, metadata)
    named = tensors_by_name(params, buffers)
    strings |= extra_text(describe_extra(extra_state or {}, named))
    parted = Parted.of(named)
    with gathering(parted.tensors, "a checkpoint") as ranks:
        if ranks.writes:
            write_parted(dest, parted, strings, rewindable=False, ranks=ranks)


def save_checkpoint_file(
    path: str | os.PathLike[str],
    params: NamedTensors,
    buffers: NamedTensors,
    hash: str | None = None,
    *,
    label: str = "",
    config: Mapping[str, Any] | None = None,
    epoch: int | None = None,
    metrics: Mapping[str, float] | None = None,
    source_config: str | None = None,
    metadata: Mapping[str, str] | None = None,
    extra_state: Mapping[str, Any] | None = None,
) -> None:
    """Write a container to ``path`` atomically; see :func:`save_checkpoint`.

    Missing parent folders are created. A path ending in ``.gz`` is compressed. If an error occurs,
    an existing file stays and no temporary file is left. A ``source_config`` is also written to
    ``<stem>.config.json`` beside the checkpoint.

    If tensors are DTensors, as with ``fully_shard``, every process with a part must call this. The
    processes gather one tensor at a time, and the lowest rank writes. The file equals that of the
    same model on one device. It exists when the call returns on any rank.

    Raises:
        CheckpointError: The file or its configuration file cannot be written, or other ranks did
            not call this within five minutes.
        ValueError: As for :func:`save_checkpoint`.
    """
    strings = checkpoint_strings(hash, label, config, epoch, metrics, source_config, metadata)
    named = tensors_by_name(params, buffers)
    strings |= extra_text(describe_extra(extra_state or {}, named))
    parted = Parted.of(named)
    with gathering(parted.tensors, f"checkpoint {os.fspath(path)}") as ranks:
        if not ranks.writes:
            return
        with writing(path) as dest:
            write_parted(dest, parted, strings, rewindable=not is_compressed(path), ranks=ranks)
        if source_config is not None:
            with writing(config_sidecar(path)) as sidecar:
                sidecar.write(source_config.encode())


def write_parted(
    dest: IO[bytes],
    parted: Parted,
    strings: Mapping[str, str],
    *,
    rewindable: bool,
    ranks: Gathering | None = None,
) -> None:
    """Write a container.

    Args:
        dest: Where to write.
        parted: The tensors.
        strings: The metadata, without aliases, forms and digest.
        rewindable: Whether ``dest`` is a plain file that begins with the container.
        ranks: Returns the values of the tensors; None if no tensor is sharded.
    """
    tensors = parted.tensors
    if ranks is not None:
        ranks.announce(fetched(tensors, rewindable=rewindable))
    fetch = ranks.fetch if ranks is not None else tensors.__getitem__
    strings = {**strings, **parted.strings()}
    write_container(dest, tensors, strings, rewindable=rewindable, fetch=fetch)


def load_checkpoint(
    src: IO[bytes],
    params: NamedTensors,
    buffers: NamedTensors,
    hash: str | None = None,
    *,
    on_shape_mismatch: OnShapeMismatch = "error",
    extra_modules: Mapping[str, nn.Module] | None = None,
) -> LoadReport:
    """Copy the tensors of a container into the tensors of a model, by name.

    Everything is checked before the first value is written: an error leaves the model unchanged.
    Values are cast to the model's dtype and moved to its device. ``requires_grad`` and the
    optimizer's references stay intact. A buffer takes its size from the file, because a training
    may have resized it. A buffer of whole numbers takes numbers with a fraction in their type. For
    a DTensor, every process fills its own part: all processes must read the same file.

    Args:
        src: A binary stream at the first byte of a container, compressed or plain.
        params: ``(name, tensor)`` pairs to fill; plain ``named_parameters()`` names are qualified.
        buffers: The same for buffers.
        hash: Structural hash of the model; compared if the file has one too.
        on_shape_mismatch: ``"skip"`` skips tensors of another shape and reports them both as
            skipped and as missing. Use it to load a model with a new head.
        extra_modules: Modules that get their extra state back, by path; see
            :func:`flodl.checkpoint.extra_state.extra_modules`.

    Raises:
        ArchitectureMismatch: Both sides have a structural hash and they differ.
        ShapeMismatch: Tensors of the same name differ in shape; the message lists all of them.
        CheckpointError: The stream is truncated, damaged, of another format or of another version.
        ValueError: A name is given twice, or an argument is invalid.
    """
    target = _Target.of(params, buffers, extra_modules)
    return _fill(read_stream(src), target, hash, on_shape_mismatch)


def load_checkpoint_file(
    path: str | os.PathLike[str],
    params: NamedTensors,
    buffers: NamedTensors,
    hash: str | None = None,
    *,
    on_shape_mismatch: OnShapeMismatch = "error",
    extra_modules: Mapping[str, nn.Module] | None = None,
) -> LoadReport:
    """Copy the tensors of the file at ``path`` into a model; see :func:`load_checkpoint`."""
    target = _Target.of(params, buffers, extra_modules)
    return _fill(read_file(path), target, hash, on_shape_mismatch)


def checkpoint_keys(path: str | os.PathLike[str]) -> list[str]:
    """Return the names stored in a file, in file order; reads only the header.

    Names of a training's state, which begin with ``.training/``, are left out.
    """
    return [entry.name for entry in read_file_header(path).model_entries]


def checkpoint_version(path: str | os.PathLike[str]) -> int:
    """Return the container version of a file; reads only the header."""
    return int(read_file_header(path).metadata["fdl_version"])


def checkpoint_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the strings stored beside the tensors (label, hash, …); reads only the header.

    The state of a training, which only resuming needs, and extra state of modules are left out.
    """
    metadata = dict(read_file_header(path).metadata)
    for key in (TRAINING, EXTRA):
        metadata.pop(key, None)
    return metadata


def tensors_by_name(params: NamedTensors, buffers: NamedTensors) -> dict[str, Tensor]:
    """Tensors by qualified name, parameters first.

    Raises:
        ValueError: A name is given twice, or is reserved.
    """
    named: dict[str, Tensor] = {}
    for source in (params, buffers):
        for given, tensor in source:
            name = qualify(given)
            if name.startswith((TRAINING_PREFIX, EXTRA_PREFIX)):
                raise ValueError(f"no tensor of a model can be named {name}; rename it")
            if name in named:
                raise ValueError(f"two tensors are named {name}; a checkpoint needs one name each")
            named[name] = tensor
    return named


def checkpoint_strings(
    hash: str | None,
    label: str,
    config: Mapping[str, Any] | None = None,
    epoch: int | None = None,
    metrics: Mapping[str, float] | None = None,
    source_config: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the metadata of a checkpoint; for the arguments see :func:`save_checkpoint`."""
    kept = {}
    if config:
        kept["config"] = _config_text(config)
    if epoch is not None:
        kept["epoch"] = str(int(epoch))
    if metrics is not None:
        finite = {name: v if math.isfinite(v) else None for name, v in metrics.items()}
        kept["metrics"] = json.dumps(finite, sort_keys=True, separators=(",", ":"), default=float)
    if source_config is not None:
        kept["source_config"] = source_config
    extra = metadata or {}
    for key, value in extra.items():
        if key in RESERVED:
            raise ValueError(f"metadata key {key!r} is the container's own; choose another")
        if key in kept:
            raise ValueError(f"metadata key {key!r} is also given as {key}=; keep one of them")
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"metadata {key!r} must be a string; encode it, for instance as JSON")
    return {**own_strings(hash or "", label), **kept, **extra}


def own_strings(hash: str, label: str) -> dict[str, str]:
    """The strings that every container of this version has."""
    return {
        "format": FORMAT,
        "fdl_version": str(VERSION),
        "structural_hash": hash,
        "label": label,
        "flodl": _writer_version(),
    }


def _config_text(config: Mapping[str, Any]) -> str:
    """Return a configuration as JSON with sorted keys, so that equal ones give equal bytes."""
    try:
        return json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as problem:
        raise ValueError(
            f"config cannot be kept as JSON: {problem}; use texts, numbers, lists and mappings"
        ) from None


@functools.cache
def _writer_version() -> str:
    try:
        return importlib.metadata.version("flodl")
    except importlib.metadata.PackageNotFoundError:  # a source tree that is not installed
        return ""


@dataclass(frozen=True, slots=True)
class _Target:
    """What a file is loaded into.

    Attributes:
        tensors: By qualified name, parameters first.
        buffers: Names of the buffers among them.
        modules: Modules that get their extra state back, by path.
    """

    tensors: dict[str, Tensor]
    buffers: frozenset[str]
    modules: Mapping[str, nn.Module]

    @classmethod
    def of(
        cls,
        params: NamedTensors,
        buffers: NamedTensors,
        modules: Mapping[str, nn.Module] | None,
    ) -> _Target:
        given = list(buffers)
        loose = frozenset(qualify(name) for name, _ in given)
        return cls(tensors_by_name(params, given), loose, modules or {})


def _fill(
    container: Container, target: _Target, hash: str | None, on_shape_mismatch: OnShapeMismatch
) -> LoadReport:
    if on_shape_mismatch not in ("error", "skip"):
        raise ValueError(f"on_shape_mismatch must be 'error' or 'skip', not {on_shape_mismatch!r}")
    model, loose = target.tensors, target.buffers if on_shape_mismatch == "error" else ()
    matches = match_names(container, model)
    for name in matches:
        check_storable(name, model[name])
    check_hash(container.header.metadata.get("structural_hash", ""), hash)
    misfits = [
        name
        for name, entry in matches.items()
        if entry.shape != model[name].shape
        and not (name in loose and resizable(model[name], entry))
    ]
    if misfits and on_shape_mismatch == "error":
        raise ShapeMismatch(describe_misfits(misfits, matches, model))
    for name in misfits:
        del matches[name]
    for name, entry in matches.items():
        _check_castable(name, entry, model[name])
    values = {name: container.tensor(entry) for name, entry in matches.items()}
    extra = stored_extra(container)
    given = {path: module for path, module in target.modules.items() if path in extra}
    with restored_on_error(model.values() if given else ()):
        for name, value in values.items():
            own = model[name]
            if name in loose and (own.shape != value.shape or _loses_fraction(value, own)):
                become(own, value if _loses_fraction(value, own) else value.to(own.dtype))
            else:
                fill(own, value)
        set_extra_states(given, extra)
    taken = {entry.name for entry in matches.values()}
    skipped = [e.name for e in container.header.model_entries if e.name not in taken]
    missing = [name for name in model if name not in matches]
    without = [path for path in target.modules if path not in given]
    return LoadReport(
        loaded=[*matches, *map(extra_name, given)],
        skipped=[*skipped, *map(extra_name, (path for path in extra if path not in given))],
        missing=[*missing, *map(extra_name, without)],
    )


def _loses_fraction(value: Tensor, own: Tensor) -> bool:
    """Whether a value has a fraction and its buffer holds whole numbers."""
    if own.is_floating_point() or own.is_complex() or not value.is_floating_point():
        return False
    return value.layout is torch.strided and not torch.equal(value, value.trunc())


def check_hash(stored: str, wanted: str | None) -> None:
    """Compare two structural hashes, if both exist.

    Raises:
        ArchitectureMismatch: They differ.
    """
    if stored and wanted and stored != wanted:
        raise ArchitectureMismatch(
            f"the checkpoint was saved from another architecture: its structural hash is {stored}, "
            f"the model's is {wanted}; to transfer weights by name, load without a hash"
        )


def match_names(container: Container, model: Mapping[str, Tensor]) -> dict[str, Entry]:
    """The stored tensor of every model tensor with a match, in model order."""
    entries = {entry.name: entry for entry in container.header.model_entries}
    aliases = container.header.aliases
    matches = {name: entries.get(aliases.get(name, name)) for name in model}
    return {name: entry for name, entry in matches.items() if entry is not None}


def describe_misfits(
    misfits: Iterable[str], matches: Mapping[str, Entry], model: Mapping[str, Tensor]
) -> str:
    """Describe every tensor whose shape differs between file and model."""
    lines = [
        f"  {name}: file {list(matches[name].shape)}, model {list(model[name].shape)}"
        for name in misfits
    ]
    return "\n".join(
        [
            "tensors of the checkpoint and the model have the same name and another shape:",
            *lines,
            "Nothing was loaded. Numbered names (linear_4) meet by chance: give modules meant to "
            "match a tag or a name=, or pass on_shape_mismatch='skip'.",
        ]
    )


def _check_castable(name: str, entry: Entry, target: Tensor) -> None:
    if entry.layout is not target.layout:
        raise CheckpointError(
            f"{name} is {entry.layout} in the checkpoint and {target.layout} in the model: build "
            "the model the way it was built"
        )
    if entry.dtype is not target.dtype and not {entry.dtype, target.dtype} <= CASTABLE:
        raise CheckpointError(
            f"{name} is {entry.dtype} in the checkpoint and {target.dtype} in the model, and torch "
            "cannot convert between them: build the model the way it was built"
        )
    if entry.dtype.is_complex and not target.is_complex():
        raise CheckpointError(
            f"{name} is complex in the checkpoint and {target.dtype} in the model: "
            "the imaginary part would be lost"
        )
