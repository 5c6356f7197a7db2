"""Weights as safetensors files, for any module: compare keys, load, save.

These functions use names as they are; pass a ``rename`` for a file with other names.
:func:`flodl.hf.loading.load_weights` knows the names in checkpoints of the Hub.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from flodl.hf import keys
from flodl.hf.errors import CheckpointMismatchError
from flodl.hf.loading import attach
from flodl.hf.source import WeightFiles, shard_names
from flodl.hf.weights.fill import Draw, fill
from flodl.hf.weights.header import read_header
from flodl.hf.weights.plan import Policy, make_plan
from flodl.hf.weights.slots import primary, slots_of
from flodl.hf.weights.stored import Stored, StoredBytes, StoredFiles
from flodl.hf.weights.writing import (
    saved_tensors,
    shard_bytes,
    to_bytes,
    write_file,
    write_shards,
)

PathName = str | os.PathLike[str]
Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class LoadValidation:
    """The comparison of the keys and shapes of a model and of a file.

    Attributes:
        missing: Keys that the model has and the file lacks, sorted.
        unused: Keys that the file has and the model lacks, sorted.
        shape_mismatches: Key, expected shape, found shape; sorted by key.
    """

    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    shape_mismatches: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()

    def is_ok(self) -> bool:
        """Whether they agree."""
        return not (self.missing or self.unused or self.shape_mismatches)

    def into_result(self) -> None:
        """Raise an error unless they agree.

        Raises:
            CheckpointMismatchError: They do not agree; lists all differences.
        """
        if not self.is_ok():
            raise self._error()

    def into_result_allow_unused(self) -> list[str]:
        """Return the unused keys, sorted, if there are no other differences.

        Raises:
            CheckpointMismatchError: Keys are missing, or shapes differ; lists all differences.
        """
        if self.missing or self.shape_mismatches:
            raise self._error()
        return list(self.unused)

    def _error(self) -> CheckpointMismatchError:
        return CheckpointMismatchError(
            "the tensors of the file are not those of the model",
            missing=self.missing,
            unused=self.unused,
            shape_mismatches=self.shape_mismatches,
            suggestions=keys.suggestions(self.missing, {key: key for key in self.unused}),
        )


def validate_keys(expected: Shapes, actual: Shapes) -> LoadValidation:
    """Compare the tensors of a model with those of a file.

    Args:
        expected: Shapes by key of the model; see :func:`expected_from_graph`.
        actual: Shapes by key of the file.
    """
    return LoadValidation(
        tuple(sorted(expected.keys() - actual.keys())),
        tuple(sorted(actual.keys() - expected.keys())),
        tuple(
            (key, tuple(expected[key]), tuple(actual[key]))
            for key in sorted(expected.keys() & actual.keys())
            if tuple(expected[key]) != tuple(actual[key])
        ),
    )


def expected_from_graph(graph: nn.Module) -> dict[str, tuple[int, ...]]:
    """The tensors that a file for this module must hold: shapes by key, in the module's order.

    A shared parameter counts once, under the key it is saved by.
    """
    return {primary(slot.places): tuple(slot.tensor.shape) for slot in slots_of(graph)}


def load_safetensors_into_graph(graph: nn.Module, data: bytes) -> None:
    """Fill a module from the content of a safetensors file: completely, or not at all.

    The keys must be exactly those of the module; a shared parameter may have any of its names.
    Tensors keep their stored dtypes and the device of the module. The report is
    ``graph.load_report``.

    Args:
        graph: Any module, on the meta device or with tensors.
        data: The whole file.

    Raises:
        CheckpointFormatError: The data are not a valid safetensors file.
        CheckpointMismatchError: Keys are missing or unused, shapes differ, or weights are not
            floats; lists all differences.
    """
    _load(graph, StoredBytes(data), _as_they_are)


def load_safetensors_into_graph_with_rename(
    graph: nn.Module, data: bytes, rename: keys.Rename
) -> None:
    """Like :func:`load_safetensors_into_graph`, for a file with other keys.

    Args:
        graph: Any module.
        data: The whole file.
        rename: Returns the module's name for a key of the file.

    Raises:
        CheckpointFormatError: As there, or two keys got the same name.
        CheckpointMismatchError: As there.
    """
    _load(graph, StoredBytes(data), rename)


def load_safetensors_into_graph_with_rename_allow_unused(
    graph: nn.Module, data: bytes, rename: keys.Rename
) -> list[str]:
    """Like :func:`load_safetensors_into_graph_with_rename`, for a file with more keys.

    Returns:
        The keys of the file that were not used, sorted.

    Raises:
        CheckpointFormatError: As there.
        CheckpointMismatchError: As there, but never only because of unused keys.
    """
    return _load(graph, StoredBytes(data), rename, allow_unused=True)


def load_safetensors_file_into_graph(graph: nn.Module, path: PathName) -> None:
    """Like :func:`load_safetensors_into_graph`, from a memory-mapped file.

    Args:
        graph: Any module.
        path: A safetensors file, or the index (``.json``) of a sharded one.

    Raises:
        CheckpointFormatError: The file or index is broken, or a shard is missing.
        CheckpointMismatchError: As there.
        OSError: The file cannot be read.
    """
    _load(graph, _stored(path), _as_they_are)


def load_safetensors_file_into_graph_with_rename(
    graph: nn.Module, path: PathName, rename: keys.Rename
) -> None:
    """Like :func:`load_safetensors_into_graph_with_rename`, from a memory-mapped file.

    Raises:
        CheckpointFormatError: The file is broken, or two keys got the same name.
        CheckpointMismatchError: As there.
        OSError: The file cannot be read.
    """
    _load(graph, _stored(path), rename)


def load_safetensors_file_into_graph_with_rename_allow_unused(
    graph: nn.Module, path: PathName, rename: keys.Rename
) -> list[str]:
    """Like :func:`load_safetensors_into_graph_with_rename_allow_unused`, from a mapped file.

    Returns:
        The keys of the file that were not used, sorted.

    Raises:
        CheckpointFormatError: The file is broken, or two keys got the same name.
        CheckpointMismatchError: As there.
        OSError: The file cannot be read.
    """
    return _load(graph, _stored(path), rename, allow_unused=True)


def _as_they_are(key: str) -> str:
    return key


def _load(
    graph: nn.Module, stored: Stored, rename: keys.Rename, *, allow_unused: bool = False
) -> list[str]:
    plan = make_plan(slots_of(graph), stored, rename, Policy(allows_unused=allow_unused))
    attach(graph, fill(plan, stored, dtype=None, device=None, draw=Draw()))
    return sorted((*plan.ignored, *plan.unexpected))


def _stored(path: PathName) -> StoredFiles:
    return StoredFiles(_weight_files(Path(path)))


def _weight_files(path: Path) -> WeightFiles:
    if path.suffix != ".json":
        return WeightFiles((path,))
    return WeightFiles(tuple(path.with_name(name) for name in shard_names(path)), path)


def save_safetensors_from_graph(graph: nn.Module) -> bytes:
    """The tensors of a module as the content of a safetensors file.

    A shared parameter is stored once, under the name that the reference saves it by. Equal modules
    give equal bytes. Tensors that were widened on loading, because the file mixed types, are
    stored in their original type if no value changes by that.

    Raises:
        ValueError: A tensor has no values yet, or two tensors would get the same key.
    """
    return to_bytes(saved_tensors(graph))


def save_safetensors_file_from_graph(
    graph: nn.Module, path: PathName, *, max_shard_size: int | str | None = None
) -> None:
    """Save a module as a safetensors file, atomically; see :func:`save_safetensors_from_graph`.

    The file replaces all files of an earlier save under this name, single or sharded. The file
    that the module was loaded from may be replaced too.

    Args:
        graph: Any module.
        path: The file, in an existing folder: ``model.safetensors``.
        max_shard_size: Bytes of tensors in one file, as a number or like ``"5GB"``. If several
            files are needed, they are ``model-00001-of-00002.safetensors`` and so on, and
            ``model.safetensors.index.json`` says which file holds which tensor.

    Raises:
        OSError: The system refused.
        ValueError: As there, or ``max_shard_size`` is not a size.
    """
    target = Path(path)
    limit = None if max_shard_size is None else shard_bytes(max_shard_size)
    tensors = saved_tensors(graph)
    if limit is None:
        write_file(tensors, target)
    else:
        write_shards(tensors, target, limit)


def weights_have_pooler(weights: WeightFiles | PathName) -> bool:
    """Whether a checkpoint holds a pooler; only headers are read.

    Args:
        weights: The files of a checkpoint, or one file or index.

    Raises:
        CheckpointFormatError: A file is broken.
        OSError: A file cannot be read.
    """
    files = weights if isinstance(weights, WeightFiles) else _weight_files(Path(weights))
    return any(keys.keys_have_pooler(read_header(path)) for path in files.files)
