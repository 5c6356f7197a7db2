"""Conversion of what a data set returns to tensors, and of samples to a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from flodl.data.dataset import describe
from flodl.errors import DataError


def fields(value: object, where: str) -> tuple[Tensor, ...]:
    """Convert the result of a data set to a tuple of tensors.

    Args:
        value: A tensor, a number, or a tuple, list or mapping of these (and of anything else that
            ``torch.as_tensor`` accepts). Floats of Python become float64.
        where: Name of the value in messages.

    Raises:
        DataError: A field cannot be converted to a tensor.
    """
    if isinstance(value, Mapping):
        members: Iterable[object] = value.values()
    elif isinstance(value, (tuple, list)):
        members = value
    else:
        members = (value,)
    tensors = tuple(_tensor(member, i, where) for i, member in enumerate(members))
    if not tensors:
        raise DataError(f"{where} has no tensor at all; return at least one")
    return tensors


def _tensor(value: object, field: int, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    try:
        if isinstance(value, np.ndarray):
            return torch.as_tensor(_own(value), device="cpu")
        return torch.as_tensor(value, dtype=_widest(value), device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"field {field} of {where} is a {type(value).__name__}; return tensors (or numbers), "
            "for an image for instance through a transform that makes one"
        ) from error


def _widest(value: object) -> torch.dtype | None:
    """Return the dtype that keeps all digits of Python's floats, as in torch's ``default_collate``.

    None if there are none of them: then the dtype of the value decides.
    """
    if isinstance(value, (tuple, list)):
        inner = set(map(_widest, value))
        return next((one for one in (torch.complex128, torch.float64) if one in inner), None)
    if isinstance(value, float):
        return torch.float64
    return torch.complex128 if isinstance(value, complex) else None


def _own(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array in a form that torch can share and write to."""
    if array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0:
        return array
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")


@final
class Members:
    """Brings mappings into one order: that of the first, or of the names if they are its keys."""

    def __init__(self, names: Sequence[str] | None) -> None:
        self._names = None if names is None or isinstance(names, str) else tuple(names)
        self.keys: tuple[object, ...] | None = None

    def names(self) -> list[str] | None:
        """Keys of the mappings read so far, ``None`` if there were none."""
        return None if self.keys is None else [str(key) for key in self.keys]

    def ordered(self, value: object, where: str) -> object:
        """Return the values of a mapping in the common order; anything else unchanged.

        A named tuple is a mapping of its names.

        Raises:
            DataError: It has other keys than the first one.
        """
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            value = value._asdict()
        if not isinstance(value, Mapping):
            return value
        if self.keys is None:
            named = self._names is not None and set(self._names) == value.keys()
            self.keys = self._names if named else tuple(value)
        if value.keys() != set(self.keys or ()):
            raise DataError(
                f"{where} has the keys {', '.join(map(repr, value))}, the first one had "
                f"{', '.join(map(repr, self.keys or ()))}; give every sample the same"
            )
        return [value[key] for key in self.keys or ()]


def stacked(
    values: Sequence[object], members: Members, name_of: Callable[[int], str]
) -> tuple[Tensor, ...]:
    """Stack samples to a batch.

    Args:
        values: The results of the data set for each sample; at least one.
        members: Brings samples that are mappings into one order.
        name_of: Returns the name of the sample at a place of the batch, for messages.

    Raises:
        DataError: Samples differ in number, shape or dtype of their tensors, or are not tensors.
    """
    # Nearly every sample is a tuple of tensors, so try without checking each of them.
    if all(type(value) is tuple and value for value in values):
        with suppress(TypeError, ValueError, RuntimeError):
            return _columns(values)
    rows = []
    for place, value in enumerate(values):
        where = name_of(place)
        rows.append(fields(members.ordered(value, where), where))
    try:
        return _columns(rows)
    except (ValueError, RuntimeError) as error:
        raise _difference(rows, name_of) or error from None


def _columns(rows: Sequence[Any]) -> tuple[Tensor, ...]:
    """Stack rows of tensors.

    Raises:
        TypeError: A member is not a tensor.
        ValueError: Rows differ in length or dtype.
        RuntimeError: They differ in shape.
    """
    columns = list(zip(*rows, strict=True))
    batch = tuple(map(torch.stack, columns))
    # torch.stack converts several dtypes to one of them.
    if any(len({tensor.dtype for tensor in column}) > 1 for column in columns):
        raise ValueError("the rows have several dtypes")
    return batch


def _difference(
    rows: Sequence[tuple[Tensor, ...]], name_of: Callable[[int], str]
) -> DataError | None:
    """Return the difference that keeps samples from being one batch."""
    first = rows[0]
    for place, row in enumerate(rows):
        if len(row) != len(first):
            return DataError(
                f"{name_of(place)} has {len(row)} tensors and {name_of(0)} has {len(first)}; "
                "every sample needs the same number"
            )
        for position, (tensor, model) in enumerate(zip(row, first, strict=True)):
            if tensor.shape != model.shape or tensor.dtype != model.dtype:
                return DataError(
                    f"tensor {position} of {name_of(place)} is {describe(tensor)}, that of "
                    f"{name_of(0)} is {describe(model)}; pad or crop the samples to one shape and "
                    "give them one dtype"
                )
    return None
