"""A tuple or a dictionary of whole tensors or arrays as a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flodl.data.dataset import BatchDataSet, TensorDataSet
from flodl.data.memmap import MemmapDataSet
from flodl.errors import DataError


def as_columns(source: object, names: Sequence[str] | None = None) -> BatchDataSet | None:
    """Wrap ``(X, Y)`` or ``{"x": X, "y": Y}`` as a data set with one field per member.

    Args:
        source: Tensors or NumPy arrays whose dimension 0 runs over the samples.
        names: Names of the fields. If they are the keys of the dictionary, they decide the order.

    Returns:
        The data set; ``None`` if no member is a tensor or an array.

    Raises:
        TypeError: Some members are tensors or arrays and others are not.
        DataError: The members differ in length.
    """
    if isinstance(source, Mapping):
        kind = "dictionary"
        keys = names if names is not None and set(names) == source.keys() else tuple(source)
        members = {str(key): source[key] for key in keys}
    elif isinstance(source, tuple):
        kind = "tuple"
        labels = getattr(source, "_fields", None) or range(len(source))
        members = {str(label): member for label, member in zip(labels, source, strict=True)}
    else:
        return None
    if not any(isinstance(member, (Tensor, np.ndarray)) for member in members.values()):
        return None
    for name, member in members.items():
        if not isinstance(member, (Tensor, np.ndarray)):
            raise TypeError(
                f"member {name!r} of the {kind} is a {type(member).__name__} and others are "
                "tensors or arrays: make each a tensor or an array with one row per sample"
            )
    lengths = {name: len(member) if member.ndim else 0 for name, member in members.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise DataError(
            f"the members of a data set need one common length in dimension 0: {told}; give "
            "each one row per sample"
        )
    return _data_set(members)


def _data_set(members: Mapping[str, Any]) -> BatchDataSet:
    columns = list(members.values())
    if all(isinstance(column, np.ndarray) for column in columns):
        return MemmapDataSet(*columns, names=list(members))
    tensors = [column if isinstance(column, Tensor) else _tensor(column) for column in columns]
    return TensorDataSet(*tensors, names=list(members))


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    (checked,) = MemmapDataSet(array).arrays
    # Shares the memory if torch can: not with foreign byte order, negative strides, or read-only.
    return torch.from_numpy(np.require(checked, checked.dtype.newbyteorder("="), ["C", "W"]))
