"""Weights as safetensors files, for any module: compare keys, load, save.

These functions take names as they are; give a ``rename`` where a file has others.
:func:`flodl.hf.loading.load_weights` knows the names of the checkpoints of the Hub by itself.
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
    """How the keys and shapes of a model and of a file compare.

    Attributes:
        missing: Keys the model has and the file lacks, sorted.
        unused: Keys the file has and the model lacks, sorted.
        shape_mismatches: Key, expected shape, found shape; sorted by key.
    """

    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    shape_mismatches: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()

    def is_ok(self) -> bool:
        """Whether they agree."""
        return not (self.missing or self.unused or self.shape_mismatches)

    def into_result(self) -> None:
        """Do nothing if they agree.

        Raises:
            CheckpointMismatchError: They do not; lists all differences.
        """
        if not self.is_ok():
            raise self._error()

    def into_result_allow_unused(self) -> list[str]:
        """The unused keys, sorted, if nothing else is wrong.

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
    """The tensors a file for this module has to hold: shapes by key, in the module's order.

    A shared parameter counts once, under the key it is saved by.
    """
    return {primary(slot.places): tuple(slot.tensor.shape) for slot in slots_of(graph)}


def load_safetensors_into_graph(graph: nn.Module, data: bytes) -> None:
    """Fill a module from the content of a safetensors file; completely, or not at all.

    The keys have to be exactly those of the module; a shared parameter may be there under any of
    its names. Tensors keep their stored dtypes and the device of the module. What was done is
    ``graph.load_report``.

    Args:
        graph: Any module, on the meta device or with tensors.
        data: The whole file.

    Raises:
        CheckpointFormatError: The data are no sound safetensors file.
        CheckpointMismatchError: Keys are missing or left over, shapes differ, or weights are no
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
        rename: Gives a key of the file the name the module has for it.

    Raises:
        CheckpointFormatError: As there, or two keys were given the same name.
        CheckpointMismatchError: As there.
    """
    _load(graph, StoredBytes(data), rename)


def load_safetensors_into_graph_with_rename_allow_unused(
    graph: nn.Module, data: bytes, rename: keys.Rename
) -> list[str]:
    """Like :func:`load_safetensors_into_graph_with_rename`, for a file that holds more.

    Returns:
        The keys of the file that were not used, sorted.

    Raises:
        CheckpointFormatError: As there.
        CheckpointMismatchError: As there, but never for unused keys alone.
    """
    return _load(graph, StoredBytes(data), rename, allow_unused=True)


def load_safetensors_file_into_graph(graph: nn.Module, path: PathName) -> None:
    """Like :func:`load_safetensors_into_graph`, from a file, which is mapped.

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
    """Like :func:`load_safetensors_into_graph_with_rename`, from a file, which is mapped.

    Raises:
        CheckpointFormatError: The file is broken, or two keys were given the same name.
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
        CheckpointFormatError: The file is broken, or two keys were given the same name.
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

    A shared parameter is stored once, under the name the reference saves it by. Equal modules give
    equal bytes. Tensors that were widened when they were loaded, because the file mixed types, are
    stored in their first type as long as that loses nothing.

    Raises:
        ValueError: A tensor has no values yet, or two of them would get the same key.
    """
    return to_bytes(saved_tensors(graph))


def save_safetensors_file_from_graph(
    graph: nn.Module, path: PathName, *, max_shard_size: int | str | None = None
) -> None:
    """Save a module as a safetensors file, atomically; see :func:`save_safetensors_from_graph`.

    Whatever an earlier save left under this name, single or sharded, is replaced. The file the
    module was loaded from may be replaced too.

    Args:
        graph: Any module.
        path: The file, in an existing folder: ``model.safetensors``.
        max_shard_size: Bytes of tensors in one file, as a number or like ``"5GB"``. If more are
            needed they are ``model-00001-of-00002.safetensors`` and so on, and
            ``model.safetensors.index.json`` says what is where.

    Raises:
        OSError: The system refused.
        ValueError: As there, or ``max_shard_size`` is no size.
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
