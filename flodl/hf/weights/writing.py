"""Write the tensors of a module, each once, in the layout of the reference."""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from fdl.base.files import replacing
from flodl.checkpoint.forms import check_storable
from flodl.checkpoint.sharded import is_sharded
from flodl.hf.errors import CheckpointFormatError, need
from flodl.hf.source import shard_names
from flodl.hf.weights import keys
from flodl.hf.weights.keys import slots_of
from flodl.hf.weights.stored import TORCH_DTYPES

METADATA = {"format": "pt"}
"""Exactly what the reference writes; some of its releases refuse files without it."""

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def save_safetensors_file_from_graph(
    graph: nn.Module, path: str | os.PathLike[str], *, max_shard_size: int | str | None = None
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
    limit = math.inf if max_shard_size is None else shard_bytes(max_shard_size)
    write_shards(saved_tensors(graph), Path(path), limit)


def expected_from_graph(graph: nn.Module) -> dict[str, tuple[int, ...]]:
    """The tensors that a file for this module must hold: shapes by key, in the module's order.

    A shared parameter counts once, under the key it is saved by.
    """
    return {slot.name: tuple(slot.tensor.shape) for slot in slots_of(graph)}


def saved_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The tensors to save by key, on the CPU, in the order of the module.

    Tensors that were widened on loading are narrowed again if no value changes by that.

    Raises:
        ValueError: Two tensors would get the same key, or one has no values yet.
    """
    report = getattr(module, "load_report", None)
    narrow: Mapping[str, str] = report.stored_dtypes if report is not None else {}
    tensors: dict[str, Tensor] = {}
    for slot in slots_of(module):
        name = slot.name
        key = keys.modern_key(name)
        if key in tensors:
            raise ValueError(f"two tensors of the module would be saved as {key}")
        if is_sharded(slot.tensor):
            raise ValueError(
                f"{name} is sharded over processes: save a checkpoint with save_checkpoint on all "
                "of them, load it into a model that is not sharded, and export that"
            )
        check_storable(name, slot.tensor)
        tensor = slot.tensor.detach().cpu()
        if name in narrow:
            tensor = _narrowed(tensor, TORCH_DTYPES[narrow[name]])
        tensors[key] = tensor
    return apart(tensors)


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, contiguous; one that shares bytes with an earlier one is copied."""
    own: dict[str, Tensor] = {}
    taken: dict[int, list[range]] = {}
    for key, tensor in tensors.items():
        compact = tensor.contiguous()
        others = taken.setdefault(compact.untyped_storage().data_ptr(), [])
        bytes_ = range(compact.data_ptr(), compact.data_ptr() + compact.nbytes)
        shared = any(one.start < bytes_.stop and bytes_.start < one.stop for one in others)
        own[key] = compact.clone() if shared else compact
        others.append(bytes_)
    return own


def _narrowed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if not tensor.is_floating_point() or tensor.element_size() <= dtype.itemsize:
        return tensor
    narrow = tensor.to(dtype)
    back = narrow.to(tensor.dtype)
    unchanged = (back == tensor) | (back.isnan() & tensor.isnan())
    return narrow if bool(unchanged.all()) else tensor


def write_file(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write one file atomically; it replaces the single or sharded file under this name.

    Raises:
        OSError: The system refused.
    """
    with replacing(path) as file:
        _write(tensors, Path(file.name), path)
    index = _index_of(path)
    _remove(shard for shard in _old_shards(index) if shard.name != path.name)
    index.unlink(missing_ok=True)


def write_shards(tensors: Mapping[str, Tensor], path: Path, limit: float) -> None:
    """Write as many files as needed, with an index; one file if that is enough.

    Files get their final names after all shards are written, and the index comes last. Files of an
    earlier save that could be mistaken for these are removed.

    Args:
        tensors: The tensors to write.
        path: Name of the single file; the shards and the index are named after it.
        limit: Bytes of tensors in one file. A larger tensor gets a separate file.

    Raises:
        OSError: The system refused.
    """
    shards = _split(tensors, limit)
    if len(shards) <= 1:
        write_file(tensors, path)
        return
    index = _index_of(path)
    old = _old_shards(index)
    names = [
        f"{path.stem}-{number:05d}-of-{len(shards):05d}{path.suffix}"
        for number in range(1, len(shards) + 1)
    ]
    with ExitStack() as stack:
        # Entered first, so the index is the last file to get its name.
        index_file = stack.enter_context(replacing(index))
        index_file.write(_index_text(tensors, dict(zip(names, shards, strict=True))))
        for name, shard in zip(names, shards, strict=True):
            file = stack.enter_context(replacing(path.with_name(name)))
            _write({key: tensors[key] for key in shard}, Path(file.name), path.with_name(name))
    _remove(shard for shard in old if shard.name not in names)
    path.unlink(missing_ok=True)


def _write(tensors: Mapping[str, Tensor], file: Path, target: Path) -> None:
    """Let the library overwrite a new file of flodl, and keep the permissions of that file.

    Raises:
        OSError: The system refused; names ``target``, the final name of the file.
    """
    safetensors = need("safetensors.torch", "hf-offline")
    mode = file.stat().st_mode
    try:
        safetensors.save_file(dict(tensors), file, metadata=METADATA)
    except need("safetensors", "hf-offline").SafetensorError as error:
        # The library puts the error of the system into its own text.
        found = re.search(r"os error (\d+)", str(error))
        code = int(found[1]) if found else errno.EIO
        raise OSError(code, os.strerror(code), str(target)) from None
    file.chmod(mode)  # the library makes a new file that only its owner can read


def _split(tensors: Mapping[str, Tensor], limit: float) -> list[list[str]]:
    """The keys of each file, in the order of the module, as many as fit."""
    shards: list[list[str]] = []
    current: list[str] = []
    size = 0
    for key, tensor in tensors.items():
        if tensor.nbytes > limit:
            shards.append([key])
            continue
        if size + tensor.nbytes > limit:
            shards.append(current)
            current, size = [], 0
        current.append(key)
        size += tensor.nbytes
    return [*shards, current] if current else shards


def _index_text(tensors: Mapping[str, Tensor], shards: Mapping[str, list[str]]) -> bytes:
    fields = {
        "metadata": {
            "total_parameters": sum(tensor.numel() for tensor in tensors.values()),
            "total_size": sum(tensor.nbytes for tensor in tensors.values()),
        },
        "weight_map": {key: name for name, shard in shards.items() for key in shard},
    }
    return (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()


def shard_bytes(size: int | str) -> int:
    """The bytes of a limit such as ``"5GB"`` or ``500_000_000``.

    Raises:
        ValueError: It is not a positive number of bytes, KB, MB, GB, KiB, MiB or GiB.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?B|B)?", str(size).upper(), re.ASCII)
    limit = float(found[1]) * _UNITS.get(found[2] or "", 1) if found else 0.0
    if not 1 <= limit < math.inf:
        raise ValueError(f'{size!r} is not a file size; write it as "500MB" or "5GB"')
    return int(limit)


def _index_of(path: Path) -> Path:
    return path.with_name(path.name + ".index.json")


def _old_shards(index: Path) -> list[Path]:
    """The shards of an earlier save; none if its index is not valid."""
    with suppress(CheckpointFormatError, FileNotFoundError):
        return [index.with_name(name) for name in shard_names(index)]
    return []


def _remove(shards: Iterable[Path]) -> None:
    for shard in shards:
        shard.unlink(missing_ok=True)
