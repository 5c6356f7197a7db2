"""Read and check the header of a safetensors file before any other use of the file.

The safetensors library checks too, but its messages differ and do not name the file. A header that
passes here describes tensors that are inside the file, back to back and without overlap. So reading
them cannot fail later.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flodl.checkpoint.container import is_shape
from flodl.hf.errors import CheckpointFormatError

_PREFIX_BYTES = 8
_MAX_HEADER = 100_000_000  # the limit of the safetensors library
_METADATA = "__metadata__"

_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The description of one tensor in a file.

    Attributes:
        dtype: Name in the file: ``F32``, ``BF16``, ``I64``.
        shape: Sizes.
        begin: Position of the first byte, counted from the end of the header.
        end: Position after the last byte.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file, by key.

    Raises:
        CheckpointFormatError: The file is not a valid safetensors file.
        OSError: The file is missing or cannot be read.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        length = _header_length(file.read(_PREFIX_BYTES), size, str(path))
        return _parsed(file.read(length), size - _PREFIX_BYTES - length, str(path))


def parse_header(data: bytes | memoryview, where: str) -> tuple[dict[str, StoredTensor], int]:
    """The tensors of a file in memory, by key, and the position of the first of them.

    Args:
        data: The whole file.
        where: The name of the file in messages.

    Raises:
        CheckpointFormatError: It is not a valid safetensors file.
    """
    length = _header_length(bytes(data[:_PREFIX_BYTES]), len(data), where)
    body = _PREFIX_BYTES + length
    return _parsed(bytes(data[_PREFIX_BYTES:body]), len(data) - body, where), body


def _header_length(prefix: bytes, size: int, where: str) -> int:
    if size == 0:
        raise CheckpointFormatError(f"{where} is empty: fetch or save it again")
    length = int.from_bytes(prefix, "little")
    if len(prefix) < _PREFIX_BYTES or not 2 <= length <= _MAX_HEADER:
        raise CheckpointFormatError(f"{where} is not a safetensors file: no header")
    if length > size - _PREFIX_BYTES:
        raise CheckpointFormatError(
            f"{where} is truncated inside its header, or no safetensors file: it has {size:,} "
            f"bytes and the header alone claims {length:,}; fetch or save it again"
        )
    return length


def _parsed(raw: bytes, body: int, where: str) -> dict[str, StoredTensor]:
    try:
        return _tensors(raw, body)
    except ValueError as error:  # covers broken JSON, broken UTF-8 and the checks here
        raise CheckpointFormatError(
            f"{where} is not a sound safetensors file: {error}; fetch or save it again"
        ) from None
    except RecursionError:
        raise CheckpointFormatError(
            f"{where} is not a safetensors file: header nested too deep"
        ) from None


def _tensors(raw: bytes, body: int) -> dict[str, StoredTensor]:
    if not raw.startswith(b"{"):
        raise ValueError("its header does not begin with a brace")
    fields = json.loads(raw.decode(), object_pairs_hook=_unique)
    metadata = fields.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its metadata are not strings")
    tensors = {key: described(key, value) for key, value in fields.items()}
    end = _check_ranges(tensors.items())
    if end > body:
        raise ValueError(f"it is truncated, {end - body:,} of {end:,} bytes are missing")
    if end < body:
        raise ValueError(f"{body - end:,} bytes follow its last tensor")
    return tensors


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("its header names one field twice")
    return fields


def described(key: str, value: object) -> StoredTensor:
    """Read the description of one tensor in a header.

    Args:
        key: Its key.
        value: The JSON object of that key.

    Raises:
        ValueError: It does not describe a tensor.
    """
    if not key.isascii():
        key.encode()  # fails for half of a surrogate pair, which no file could store again
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {key!r} is not described by dtype, shape and data_offsets")
    bits = _BITS.get(value["dtype"]) if isinstance(value["dtype"], str) else None
    if bits is None:
        raise ValueError(f"tensor {key!r} has an unknown dtype {value['dtype']!r}")
    shape, offsets = value["shape"], value["data_offsets"]
    if not (_are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2 and is_shape(shape)):
        raise ValueError(f"tensor {key!r} has a malformed shape or byte range")
    begin, end = offsets
    if (end - begin) * 8 != math.prod(shape) * bits:
        raise ValueError(f"tensor {key!r}: its byte range does not fit its shape")
    return StoredTensor(value["dtype"], tuple(shape), begin, end)


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item < 1 << 63 for item in value
    )


def _check_ranges(tensors: Iterable[tuple[str, StoredTensor]]) -> int:
    position = 0
    for key, tensor in sorted(tensors, key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != position:
            raise ValueError(f"the bytes of tensor {key!r} overlap others or leave a gap")
        position = tensor.end
    return position
