"""The header of safetensors files, checked before any other use of the file.

The safetensors library checks too, but its messages differ and do not name the file. A header that
passes here describes tensors that are inside the file, back to back and without overlap. So reading
them cannot fail later.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

PREFIX_BYTES = 8  # they hold the length of the header
MAX_HEADER = 100_000_000  # the limit of the safetensors library
METADATA = "__metadata__"

_MAX_DIMENSIONS = 64

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The types of safetensors that torch has, each under its name there."""
_BITS = {
    **{name: 8 * dtype.itemsize for name, dtype in DTYPES.items()},
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
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


def read_fields(raw: bytes | bytearray) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields of a header by key, without those of the metadata, and the metadata.

    Raises:
        ValueError: It is not a JSON object, names one field twice, or its metadata are not strings.
    """
    if not raw.startswith(b"{"):
        raise ValueError("its header does not begin with a brace")
    fields = json.loads(raw.decode(), object_pairs_hook=unique)
    metadata = fields.pop(METADATA, {})
    if not is_text_mapping(metadata):
        raise ValueError("its metadata are not strings")
    return fields, metadata


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Make a mapping of pairs; for ``json.loads``.

    Raises:
        ValueError: A key occurs twice.
    """
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("its header names one field twice")
    return fields


def is_text_mapping(value: object) -> bool:
    """Whether all values of a JSON object are strings."""
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


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
    if (
        not (isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2)
        or not all(type(size) is int and 0 <= size < 1 << 63 for size in (*shape, *offsets))
        or not is_shape(shape)
    ):
        raise ValueError(f"tensor {key!r} has a malformed shape or byte range")
    begin, end = offsets
    if (end - begin) * 8 != math.prod(shape) * bits:
        raise ValueError(f"tensor {key!r}: its byte range does not fit its shape")
    return StoredTensor(value["dtype"], tuple(shape), begin, end)


def is_shape(sizes: Sequence[int]) -> bool:
    """Whether torch can hold a tensor with these sizes (none is negative).

    Torch multiplies the sizes in 63 bits, without those that are zero.
    """
    return len(sizes) <= _MAX_DIMENSIONS and math.prod(size or 1 for size in sizes) < 1 << 63


def check_ranges(tensors: Iterable[tuple[str, StoredTensor]]) -> int:
    """Check that tensors lie back to back, and return the position after the last one.

    Raises:
        ValueError: They overlap or leave a gap.
    """
    position = 0
    for key, tensor in sorted(tensors, key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != position:
            raise ValueError(f"the bytes of tensor {key!r} overlap others or leave a gap")
        position = tensor.end
    return position
