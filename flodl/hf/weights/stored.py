"""The tensors of files, which are memory-mapped.

Mapped tensors take no memory until they are read. The mapping is private: a program that writes to
such a tensor gets its own pages and does not change the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from flodl.checkpoint.header import (
    DTYPES,
    MAX_HEADER,
    PREFIX_BYTES,
    StoredTensor,
    check_ranges,
    described,
    read_fields,
)
from flodl.hf.errors import CheckpointFormatError, need
from flodl.hf.source import WeightFiles, shards_of

_KINDS = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")
TORCH_DTYPES = {name: DTYPES[name] for name in _KINDS}
"""The types that a module can have, by their names in files."""
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""The types that a weight can have."""


def same_bytes(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors have one dtype, one shape and the same bytes."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    one, other = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right))
    return torch.equal(one, other)


def promoted(tensors: Iterable[Tensor]) -> torch.dtype | None:
    """The type that holds every value of all tensors; None if none of them is of floats."""
    found = None
    for tensor in tensors:
        if tensor.is_floating_point():
            found = tensor.dtype if found is None else torch.promote_types(found, tensor.dtype)
    return found


@final
class StoredFiles:
    """One file, or the shards of a checkpoint.

    Args:
        weights: The files, and the index of the shards.
        key_mapping: Regular expressions for the names of tensors -> what replaces the match. The
            first that matches a name counts, as in transformers.

    Raises:
        CheckpointFormatError: A file is broken, a shard is missing, two shards hold one key, or
            the index does not describe its shards.
        OSError: A file cannot be read.
    """

    def __init__(self, weights: WeightFiles, key_mapping: Mapping[str, str] | None = None) -> None:
        self.files = weights.files
        self.where = str(weights.index or ", ".join(map(str, self.files)))
        self.tensors: dict[str, StoredTensor] = {}
        self._owner: dict[str, Path] = {}
        for path in self.files:
            self._add(path, weights.index)
        if weights.index is not None:
            _check_index(weights.index, self._owner)
        self._names: Mapping[str, str] = {}
        if key_mapping:
            # Name for the model -> name in the file.
            self._names = _renamed(self.tensors, key_mapping)
            self.tensors = {name: self.tensors[key] for name, key in self._names.items()}

    def _add(self, path: Path, index: Path | None) -> None:
        try:
            header = read_header(path)
        except FileNotFoundError:
            if index is None:
                raise
            raise CheckpointFormatError(
                f"{index} names the shard {path.name}, which is missing: fetch or export it again"
            ) from None
        for key in header:
            if key in self._owner:
                raise CheckpointFormatError(
                    f"{key} is in two files, {self._owner[key]} and {path}: which of them counts "
                    "is unknown; export the checkpoint again"
                )
            self._owner[key] = path
        self.tensors.update(header)

    def read(self, keys: Iterable[str]) -> dict[str, Tensor]:
        """Some of the tensors, on the CPU, in their stored dtypes; the memory is mapped privately.

        Raises:
            CheckpointFormatError: A file changed since its header was read.
        """
        safetensors = need("safetensors", "hf-offline")
        by_file: dict[Path, list[str]] = {}
        for name in keys:
            by_file.setdefault(self._owner[self._names.get(name, name)], []).append(name)
        tensors: dict[str, Tensor] = {}
        for path, names in by_file.items():
            try:
                with safetensors.safe_open(path, framework="pt") as file:
                    for name in names:
                        tensors[name] = file.get_tensor(self._names.get(name, name))
            except safetensors.SafetensorError as error:
                raise CheckpointFormatError(f"{path} cannot be read: {error}") from None
        return tensors


def _renamed(keys: Iterable[str], mapping: Mapping[str, str]) -> dict[str, str]:
    """The new name of each key -> the key.

    Raises:
        CheckpointFormatError: Two keys get one name.
    """
    names: dict[str, str] = {}
    for key in keys:
        changed = (re.subn(pattern, new, key) for pattern, new in mapping.items())
        name = next((text for text, count in changed if count), key)
        if name in names:
            raise CheckpointFormatError(
                f"key_mapping gives {names[name]} and {key} the same name, {name}"
            )
        names[name] = key
    return names


def _check_index(index: Path, owner: Mapping[str, Path]) -> None:
    """Check that every tensor is in the shard the index names; further tensors are allowed."""
    for key, shard in shards_of(index).items():
        found = owner.get(key)
        if found is None or found.name != shard:
            place = "no shard has it" if found is None else f"it is in {found.name}"
            raise CheckpointFormatError(
                f"{index} says that {key} is in {shard}, but {place}: fetch or export it again"
            )


# --- The header of one file --------------------------------------------------------------------


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file, by key.

    Raises:
        CheckpointFormatError: The file is not a valid safetensors file.
        OSError: The file is missing or cannot be read.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        length = _header_length(file.read(PREFIX_BYTES), size, str(path))
        raw, body = file.read(length), size - PREFIX_BYTES - length
    try:
        fields, _ = read_fields(raw)
        tensors = {key: described(key, value) for key, value in fields.items()}
        end = check_ranges(tensors.items())
        if end > body:
            raise ValueError(f"it is truncated, {end - body:,} of {end:,} bytes are missing")
        if end < body:
            raise ValueError(f"{body - end:,} bytes follow its last tensor")
    except ValueError as error:  # covers broken JSON, broken UTF-8 and the checks here
        raise CheckpointFormatError(
            f"{path} is not a sound safetensors file: {error}; fetch or save it again"
        ) from None
    except RecursionError:
        raise CheckpointFormatError(
            f"{path} is not a safetensors file: header nested too deep"
        ) from None
    return tensors


def _header_length(prefix: bytes, size: int, where: str) -> int:
    if size == 0:
        raise CheckpointFormatError(f"{where} is empty: fetch or save it again")
    length = int.from_bytes(prefix, "little")
    if len(prefix) < PREFIX_BYTES or not 2 <= length <= MAX_HEADER:
        raise CheckpointFormatError(f"{where} is not a safetensors file: no header")
    if length > size - PREFIX_BYTES:
        raise CheckpointFormatError(
            f"{where} is truncated inside its header, or no safetensors file: it has {size:,} "
            f"bytes and the header alone claims {length:,}; fetch or save it again"
        )
    return length
