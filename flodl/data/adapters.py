"""How anything that resembles a data set becomes a :class:`~flodl.data.dataset.BatchDataSet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, final, runtime_checkable

import numpy as np
import torch
import torch.utils.data
from torch import Tensor

from flodl.data.dataset import BatchDataSet, TensorDataSet, describe
from flodl.data.memmap import MemmapDataSet
from flodl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUMBERS_TOLD = 8


@runtime_checkable
class _MapStyle(Protocol):
    """What torch calls a map-style data set."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


def as_batch_data_set(source: object, names: Sequence[str] | None = None) -> BatchDataSet:
    """See any data set as a :class:`~flodl.data.dataset.BatchDataSet`.

    Where its samples or batches are mappings, every one is read in the order of the first.

    Args:
        source: A :class:`~flodl.data.dataset.BatchDataSet`, a
            :class:`~flodl.data.dataset.DataSet`, a map-style data set of torch (``__len__`` and
            ``__getitem__``), a ``Dataset`` of the ``datasets`` library, or a NumPy array (a
            memory map for instance).
        names: Where these are the keys of the mappings, they decide the order.

    Raises:
        TypeError: It is none of these; for data without a length or an index (torch's
            ``IterableDataset``) and for a dictionary of splits the message says what to do.
    """
    if isinstance(source, (TensorDataSet, MemmapDataSet)):
        return source
    if isinstance(source, BatchDataSet):
        return _Batches(source, names)
    if isinstance(source, torch.utils.data.TensorDataset):
        return TensorDataSet(*source.tensors)
    if isinstance(source, np.ndarray):
        return MemmapDataSet(source)
    if _is_table(source):
        return _Table(source)
    if isinstance(source, torch.utils.data.IterableDataset):
        raise TypeError(
            f"{type(source).__name__} is an IterableDataset: without a length and an index it can "
            "neither be shuffled nor resumed exactly; collect it into a list, or write it to a "
            ".npy file and read that with flodl.data.MemmapDataSet"
        )
    if isinstance(source, _MapStyle) and not isinstance(source, Mapping):
        return _Stacked(source, names)
    splits = (
        f" (a dictionary: pass one of its members, {', '.join(map(repr, source))})"
        if isinstance(source, Mapping) and source
        else ""
    )
    raise TypeError(
        f"{type(source).__name__} is not a data set{splits}: derive from flodl.DataSet or "
        "flodl.BatchDataSet, or give it __len__ and __getitem__ like a map-style data set of torch"
    )


def declared_names(source: object) -> Sequence[str] | None:
    """Names a data set gives its fields: its ``names``, else its columns (a table)."""
    names = getattr(source, "names", None)
    if isinstance(names, (tuple, list)) and all(isinstance(name, str) for name in names):
        return names
    if _is_table(source):
        return [str(name) for name in source.column_names]
    return None


def keys_of(source: BatchDataSet) -> list[str] | None:
    """Keys of the mappings that an adapted data set has read, ``None`` if they were none."""
    keys = source.members.keys if isinstance(source, (_Batches, _Stacked)) else None
    return None if keys is None else [str(key) for key in keys]


def fields(value: object, where: str) -> tuple[Tensor, ...]:
    """Read what a data set returned as a tuple of tensors.

    Args:
        value: A tensor, a number, or a tuple, list or mapping of these (and of anything else
            ``torch.as_tensor`` understands).
        where: What the value is, for the message.

    Raises:
        DataError: A field is something that does not become a tensor.
    """
    if isinstance(value, Mapping):
        members: Iterable[object] = value.values()
    elif isinstance(value, (tuple, list)):
        members = value
    else:
        members = (value,)
    tensors = tuple(_tensor(member, f"field {i} of {where}") for i, member in enumerate(members))
    if not tensors:
        raise DataError(f"{where} has no tensor at all; return at least one")
    return tensors


def _tensor(value: object, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    try:
        return torch.as_tensor(
            _own(value) if isinstance(value, np.ndarray) else value, device="cpu"
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{where} is a {type(value).__name__}; return tensors (or numbers), for an image "
            "for instance through a transform that makes one"
        ) from error


def _own(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array that torch can see as a tensor, and that whoever gets the tensor may write into."""
    if array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0:
        return array
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")


@final
class _Members:
    """Brings mappings into one order: that of the first, or of the names if they are its keys."""

    def __init__(self, names: Sequence[str] | None) -> None:
        self._names = None if names is None or isinstance(names, str) else tuple(names)
        self.keys: tuple[object, ...] | None = None

    def ordered(self, value: object, where: str) -> object:
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


@final
class _Batches(BatchDataSet):
    """A data set of the user's that yields batches; errors in it tell the samples."""

    def __init__(self, batches: BatchDataSet, names: Sequence[str] | None) -> None:
        self._batches = batches
        self.members = _Members(names)

    def __len__(self) -> int:
        return len(self._batches)

    def get_batch(self, indices: Sequence[int]) -> Any:
        try:
            value = self._batches.get_batch(indices)
        except Exception as error:
            numbers = ", ".join(map(str, indices[:_NUMBERS_TOLD]))
            more = f" and {len(indices) - _NUMBERS_TOLD} more" * (len(indices) > _NUMBERS_TOLD)
            error.add_note(
                f"while {type(self._batches).__name__}.get_batch read the samples {numbers}{more}"
            )
            raise
        return self.members.ordered(value, "a batch")


@final
class _Stacked(BatchDataSet):
    """Turns a data set that yields single samples into one that yields batches."""

    def __init__(self, samples: _MapStyle, names: Sequence[str] | None) -> None:
        self._samples = samples
        self.members = _Members(names)

    def __len__(self) -> int:
        return len(self._samples)

    def get_batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        rows = [self._sample(index) for index in indices]
        first = rows[0]
        for index, row in zip(indices, rows, strict=True):
            if len(row) != len(first):
                raise DataError(
                    f"sample {index} has {len(row)} tensors and sample {indices[0]} has "
                    f"{len(first)}; every sample needs the same number"
                )
            for position, (tensor, model) in enumerate(zip(row, first, strict=True)):
                if tensor.shape != model.shape or tensor.dtype != model.dtype:
                    raise DataError(
                        f"tensor {position} of sample {index} is {describe(tensor)}, that of "
                        f"sample {indices[0]} is {describe(model)}; pad or crop the samples to "
                        "one shape and give them one dtype"
                    )
        return tuple(torch.stack(column) for column in zip(*rows, strict=True))

    def _sample(self, index: int) -> tuple[Tensor, ...]:
        try:
            value = self._samples[index]
        except Exception as error:
            error.add_note(f"while {type(self._samples).__name__} read sample {index}")
            raise
        where = f"sample {index}"
        return fields(self.members.ordered(value, where), where)


def _is_table(source: Any) -> TypeGuard[Any]:
    """Whether this is a ``Dataset`` of the ``datasets`` library, told by what it can do."""
    return (
        isinstance(getattr(source, "column_names", None), list)
        and callable(getattr(source, "with_format", None))
        and isinstance(source, _MapStyle)
    )


@final
class _Table(BatchDataSet):
    """A table of the ``datasets`` library: columns, read many rows at a time.

    A table without a format of its own is read as NumPy arrays. Reading widens small integers to
    int64, so each column is given back the dtype that its feature declares.
    """

    def __init__(self, table: Any) -> None:
        self.names = tuple(str(name) for name in table.column_names)
        plain = getattr(table, "format", {}).get("type") is None
        self._table = table.with_format("numpy") if plain else table
        features = getattr(table, "features", None) or {}
        self._dtypes = {name: _declared_dtype(features.get(name)) for name in self.names}

    def __len__(self) -> int:
        return len(self._table)

    def get_batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        columns = self._table[list(indices)]
        return tuple(self._column(name, columns[name]) for name in self.names)

    def _column(self, name: str, values: object) -> Tensor:
        if isinstance(values, list) and values and isinstance(values[0], Tensor):
            shapes = {tuple(value.shape) for value in values}
            if len(shapes) == 1:
                return torch.stack(values)
            raise self._ragged(name)
        if isinstance(values, Tensor):
            return values
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise self._ragged(name) from error
        if array.dtype == object:
            raise self._ragged(name)
        if array.dtype.kind not in "biufc":
            raise DataError(
                f"column {name!r} holds {array.dtype} values, which are no numbers; turn them "
                f"into numbers with map(), or leave the column out: remove_columns([{name!r}])"
            )
        declared = self._dtypes[name]
        # Arrow hands out read-only memory, which a tensor must not share.
        return torch.from_numpy(np.array(array, dtype=declared or array.dtype))

    def _ragged(self, name: str) -> DataError:
        return DataError(
            f"the rows of column {name!r} differ in length or are no numbers; pad them to one "
            f"length with map(), or leave the column out: remove_columns([{name!r}])"
        )


def _declared_dtype(feature: Any) -> np.dtype[Any] | None:
    """Dtype of the numbers a feature of the ``datasets`` library holds, ``None`` for others."""
    while hasattr(feature, "feature"):
        feature = feature.feature
    try:
        dtype = np.dtype(getattr(feature, "dtype", None) or "object")
    except TypeError:
        return None
    return dtype if dtype.kind in "biufc" else None
