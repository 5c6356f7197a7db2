"""Read the header of a safetensors file from the Hub."""

from __future__ import annotations

from pathlib import Path

from flodl.checkpoint.header import (
    MAX_HEADER,
    PREFIX_BYTES,
    StoredTensor,
    check_ranges,
    described,
    read_fields,
)
from flodl.hf.errors import CheckpointFormatError


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file, by key.

    Raises:
        CheckpointFormatError: The file is not a valid safetensors file.
        OSError: The file is missing or cannot be read.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        length = _header_length(file.read(PREFIX_BYTES), size, str(path))
        return _parsed(file.read(length), size - PREFIX_BYTES - length, str(path))


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
    fields, _ = read_fields(raw)
    tensors = {key: described(key, value) for key, value in fields.items()}
    end = check_ranges(tensors.items())
    if end > body:
        raise ValueError(f"it is truncated, {end - body:,} of {end:,} bytes are missing")
    if end < body:
        raise ValueError(f"{body - end:,} bytes follow its last tensor")
    return tensors
