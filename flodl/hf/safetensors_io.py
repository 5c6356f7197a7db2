"""Weights as safetensors files, for any module, with names as they are.

:func:`flodl.hf.loading.load_weights` knows the names in checkpoints of the Hub.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn

from flodl.hf.loading import attach
from flodl.hf.source import WeightFiles, shard_names
from flodl.hf.weights.fill import Draw, fill
from flodl.hf.weights.plan import Policy, make_plan
from flodl.hf.weights.slots import primary, slots_of
from flodl.hf.weights.stored import StoredFiles
from flodl.hf.weights.writing import (
    saved_tensors,
    shard_bytes,
    write_file,
    write_shards,
)

PathName = str | os.PathLike[str]
Shapes = Mapping[str, Sequence[int]]


def expected_from_graph(graph: nn.Module) -> dict[str, tuple[int, ...]]:
    """The tensors that a file for this module must hold: shapes by key, in the module's order.

    A shared parameter counts once, under the key it is saved by.
    """
    return {primary(slot.places): tuple(slot.tensor.shape) for slot in slots_of(graph)}


def load_safetensors_file_into_graph(graph: nn.Module, path: PathName) -> None:
    """Fill a module from a memory-mapped safetensors file: completely, or not at all.

    The keys must be exactly those of the module; a shared parameter may have any of its names.
    Tensors keep their stored dtypes and the device of the module. The report is
    ``graph.load_report``.

    Args:
        graph: Any module, on the meta device or with tensors.
        path: The file, or the index (``.json``) of a sharded one.

    Raises:
        CheckpointFormatError: The file or index is broken, or a shard is missing.
        CheckpointMismatchError: Keys are missing or unused, shapes differ, or weights are not
            floats; lists all differences.
        OSError: The file cannot be read.
    """
    stored = StoredFiles(_weight_files(Path(path)))
    plan = make_plan(slots_of(graph), stored, str, Policy(allows_unused=False))
    attach(graph, fill(plan, stored, dtype=None, device=None, draw=Draw()))


def _weight_files(path: Path) -> WeightFiles:
    if path.suffix != ".json":
        return WeightFiles((path,))
    return WeightFiles(tuple(path.with_name(name) for name in shard_names(path)), path)


def save_safetensors_file_from_graph(
    graph: nn.Module, path: PathName, *, max_shard_size: int | str | None = None
) -> None:
    """Save a module as a safetensors file, atomically.

    A shared parameter is stored once, under the name that the reference saves it by. Equal modules
    give equal bytes. Tensors that were widened on loading, because the file mixed types, are
    stored in their original type if no value changes by that.

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
        ValueError: A tensor has no values yet, two tensors would get the same key, or
            ``max_shard_size`` is not a size.
    """
    target = Path(path)
    limit = None if max_shard_size is None else shard_bytes(max_shard_size)
    tensors = saved_tensors(graph)
    if limit is None:
        write_file(tensors, target)
    else:
        write_shards(tensors, target, limit)
