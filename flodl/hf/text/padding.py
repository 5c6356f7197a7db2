"""Fill rows that were encoded before: what a collator calls for each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from flodl.hf.batch_encoding import BatchEncoding, TensorKind
from flodl.hf.families.family import IDS, MASK, TYPES
from flodl.hf.text.call_options import RowShape

Features: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Filling:
    """What rows are filled with.

    Attributes:
        pad_id: The id of padding; None if the tokenizer has none.
        pad_type_id: The segment of padding.
        with_mask: Whether rows get an ``attention_mask`` that they do not have.
        mask_of_none: Whether a batch without rows gets one too.
    """

    pad_id: int | None
    pad_type_id: int
    with_mask: bool
    mask_of_none: bool


def padded(
    features: Features, shape: RowShape, filling: Filling, tensors: TensorKind | None
) -> BatchEncoding:
    """Fill encoded rows to one width.

    Args:
        features: A list of rows (mappings of values), or one mapping of lists of values. Values
            with other names than those of a tokenizer are passed on as they are.
        shape: How far rows are filled; ``truncation`` is not read.
        filling: What they are filled with.
        tensors: The kind of tensor that the values become; None for lists.

    Raises:
        ValueError: There are no ``input_ids``, or values have unequal numbers of rows, or rows
            have unequal lengths and become tensors.
    """
    values = _by_name(features)
    if IDS not in values:
        raise ValueError(f"pad() needs {IDS!r} for each row, got {', '.join(values) or 'nothing'}")
    if tensors is None:
        tensors = _kind_of(values[IDS])
    values = {name: _plain(value) for name, value in values.items()}
    rows = values[IDS]
    if not rows:
        return BatchEncoding({**values, MASK: []} if filling.mask_of_none else values)
    if not isinstance(rows[0], list):
        one = {name: [value] for name, value in values.items()}
        filled = {name: value[0] for name, value in _filled(one, shape, filling).items()}
        return BatchEncoding(filled, tensor_type=tensors)
    for name, value in values.items():
        if len(value) != len(rows):
            raise ValueError(f"{name} has {len(value)} rows and {IDS} {len(rows)}")
    return BatchEncoding(_filled(values, shape, filling), tensor_type=tensors)


def _filled(values: dict[str, list[Any]], shape: RowShape, filling: Filling) -> dict[str, Any]:
    rows = values[IDS]
    if filling.with_mask and MASK not in values:
        values = {**values, MASK: [[1] * len(row) for row in rows]}
    if shape.padding is None:
        return values
    width = max(len(row) for row in rows) if shape.padding == "longest" else shape.max_length or 0
    if shape.multiple is not None:
        width = -(-width // shape.multiple) * shape.multiple
    if all(len(row) >= width for row in rows):
        return values
    if filling.pad_id is None:
        raise ValueError(NO_PAD_TOKEN)
    padding = {IDS: filling.pad_id, MASK: 0, TYPES: filling.pad_type_id, "special_tokens_mask": 1}
    return {
        name: _widened(value, width, padding[name], shape.side) if name in padding else value
        for name, value in values.items()
    }


NO_PAD_TOKEN = (
    "padding needs a pad token, and the tokenizer has none: name one with "
    "tokenizer.add_special_tokens({'pad_token': '[PAD]'})"
)


def _widened(rows: list[list[int]], width: int, padding: int, side: str) -> list[list[int]]:
    if side == "left":
        return [[padding] * (width - len(row)) + row for row in rows]
    return [row + [padding] * (width - len(row)) for row in rows]


def _by_name(features: Features) -> dict[str, Any]:
    if isinstance(features, Mapping):
        return dict(features)
    if not features or not all(isinstance(row, Mapping) for row in features):
        raise ValueError("pad() needs a mapping of values, or a list with a mapping for each row")
    try:
        return {name: [row[name] for row in features] for name in features[0]}
    except KeyError as error:
        raise ValueError(f"a row has no {error.args[0]!r}, and the first row has it") from None


def _kind_of(rows: Any) -> TensorKind | None:
    """The kind of tensor that the rows are, so that the result is of the same kind."""
    first = rows[0] if isinstance(rows, (list, tuple)) and rows else rows
    if isinstance(first, (list, tuple)) and first:
        first = first[0]
    if isinstance(first, torch.Tensor):
        return "pt"
    return "np" if isinstance(first, (np.ndarray, np.generic)) else None


def _plain(value: Any) -> Any:
    """Tensors and arrays as lists, at any depth of lists."""
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (torch.Tensor, np.ndarray, np.generic, list, tuple)):
            return [_plain(entry) for entry in value]
        return list(value)
    return value
