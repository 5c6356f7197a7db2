"""Adapters from all kinds of data sets to :class:`~flodl.data.dataset.BatchDataSet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Protocol, TypeGuard, final, runtime_checkable

import numpy as np
import torch
import torch.utils.data
from torch import Tensor

from flodl.data.dataset import BatchDataSet, DataSet, TensorDataSet
from flodl.data.memmap import MemmapDataSet
from flodl.data.samples import Members, stacked
from flodl.errors import DataError

_NUMBERS_TOLD = 8


@runtime_checkable
class _MapStyle(Protocol):
    """A map-style data set, as torch calls it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


def as_batch_data_set(source: object, names: Sequence[str] | None = None) -> BatchDataSet:
    """Wrap any data set as a :class:`~flodl.data.dataset.BatchDataSet`; reads no sample.

    If its samples or batches are mappings, all of them are read in the key order of the first one.

    Args:
        source: A :class:`~flodl.data.dataset.BatchDataSet` or a
            :class:`~flodl.data.dataset.DataSet`. A tuple or a dictionary of equally long tensors or
            arrays. A map-style data set of torch (``__len__`` and ``__getitem__``). A ``Dataset``
            of the ``datasets`` library. A NumPy array, for instance a memory map.
        names: Names of the fields. If they are the keys of the mappings, they decide the order.

    Raises:
        TypeError: It is not one of these. For data that can only be iterated and for a dictionary
            of splits, the message says what to do.
        DataError: Tensors or arrays of different lengths.
    """
    if isinstance(source, type):
        raise TypeError(
            f"{source.__name__} is a class, not a data set: pass an object, {source.__name__}(…)"
        )
    if isinstance(source, MemmapDataSet) or _is_plain(source, TensorDataSet, "get_batch"):
        return source  # type: ignore[return-value]
    if isinstance(source, BatchDataSet):
        return _Batches(source, names)
    if isinstance(source, DataSet):
        return _Stacked(source, names)
    if _is_plain(source, torch.utils.data.TensorDataset, "__getitem__", "__len__", "__getitems__"):
        return TensorDataSet(*source.tensors)  # type: ignore[attr-defined]
    if isinstance(source, np.ndarray):
        return MemmapDataSet(source)
    if _is_table(source):
        return _Table(source)
    if is_iterable(source):
        raise TypeError(
            f"{type(source).__name__} can only be iterated: without a length and an index its "
            "samples can be neither shuffled nor shared among ranks, and an epoch cannot be "
            "resumed in its middle; give it to a Trainer on one device or to "
            "flodl.data.IterableLoader, or write it to .npy files and read those with "
            "flodl.data.MemmapDataSet"
        )
    columns = as_columns(source, names)
    if columns is not None:
        return columns
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


def is_iterable(source: object) -> bool:
    """Whether data can only be iterated from front to back, judged by the methods of the object.

    This holds for a ``DataLoader`` and an ``IterableDataset`` of torch, a function that makes an
    iterator, and any other object with ``__iter__`` that has no length or no index.
    """
    if isinstance(source, (torch.utils.data.DataLoader, torch.utils.data.IterableDataset)):
        return True
    if isinstance(source, (type, BatchDataSet, DataSet, Set)):
        return False
    if hasattr(source, "__len__"):
        return hasattr(source, "__iter__") and not hasattr(source, "__getitem__")
    return callable(source) or hasattr(source, "__iter__")


def stays_in_memory(source: BatchDataSet) -> bool:
    """Whether an adapted data set holds tensors, arrays or memory maps, and runs no user code."""
    return isinstance(source, (TensorDataSet, MemmapDataSet))


def _is_plain(source: object, kind: type, *methods: str) -> bool:
    """Whether an object reads as its class ``kind`` does: no subclass overrides these methods."""
    found = type(source)
    return isinstance(source, kind) and all(
        getattr(found, method, None) is getattr(kind, method, None)
        for method in (*methods, "__getitem__")
    )


def declared_names(source: object) -> Sequence[str] | None:
    """Names that a data set gives its fields: its ``names``, else its columns (a table)."""
    names = getattr(source, "names", None)
    if isinstance(names, (tuple, list)) and all(isinstance(name, str) for name in names):
        return names
    return _columns_read(source) if _is_table(source) else None


def members_of(source: BatchDataSet) -> Members:
    """The order in which an adapted data set reads mappings."""
    return source.members if isinstance(source, (_Batches, _Stacked)) else Members(None)


@final
class _Batches(BatchDataSet):
    """Wraps a user's data set that yields batches; errors in it name the samples."""

    def __init__(self, batches: BatchDataSet, names: Sequence[str] | None) -> None:
        self._batches = batches
        self.members = Members(names)

    def __len__(self) -> int:
        return len(self._batches)

    def get_batch(self, indices: Sequence[int]) -> Any:
        try:
            value = self._batches.get_batch(indices)
        except Exception as error:
            name = type(self._batches).__name__
            error.add_note(f"while {name}.get_batch read the samples {_told(indices)}")
            raise
        return self.members.ordered(value, "a batch")


@final
class _Stacked(BatchDataSet):
    """Turns a data set that yields single samples into one that yields batches."""

    def __init__(self, samples: _MapStyle, names: Sequence[str] | None) -> None:
        self._samples = samples
        self._reads_many = bool(getattr(samples, "__getitems__", None))
        self.members = Members(names)

    def __len__(self) -> int:
        return len(self._samples)

    def get_batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        rows = self._together(indices) if self._reads_many else self._one_by_one(indices)
        return stacked(rows, self.members, lambda place: f"sample {indices[place]}")

    def _one_by_one(self, indices: Sequence[int]) -> Sequence[object]:
        rows: list[object] = []
        try:
            for index in indices:
                rows.append(self._samples[index])  # noqa: PERF401 - counted if one raises
        except Exception as error:
            name = type(self._samples).__name__
            error.add_note(f"while {name} read sample {indices[len(rows)]}")
            raise
        return rows

    def _together(self, indices: Sequence[int]) -> Sequence[object]:
        """Read with ``__getitems__``; torch's loader also calls it if it exists."""
        name = type(self._samples).__name__
        try:
            rows = self._samples.__getitems__(list(indices))  # type: ignore[attr-defined]
        except Exception as error:
            error.add_note(f"while {name}.__getitems__ read the samples {_told(indices)}")
            raise
        several = isinstance(rows, (list, tuple))
        if several and len(rows) == len(indices):
            return rows  # type: ignore[no-any-return]
        got = f"{len(rows)}" if several else f"a {type(rows).__name__}"
        raise DataError(
            f"{name}.__getitems__ was asked for {len(indices)} samples and returned {got}; return "
            "a list with one sample per index, or derive from flodl.BatchDataSet to return whole "
            "batches"
        )


def _told(indices: Sequence[int]) -> str:
    numbers = ", ".join(map(str, indices[:_NUMBERS_TOLD]))
    more = len(indices) - _NUMBERS_TOLD
    return f"{numbers} and {more} more" if more > 0 else numbers


def _is_table(source: Any) -> TypeGuard[Any]:
    """Whether this is a ``Dataset`` of the ``datasets`` library, judged by its methods.

    With a transform of the user, it is not: its samples then have other members than its columns.
    """
    return (
        isinstance(getattr(source, "column_names", None), list)
        and callable(getattr(source, "with_format", None))
        and isinstance(source, _MapStyle)
        and getattr(source, "format", {}).get("type") != "custom"
    )


def _columns_read(table: Any) -> list[str]:
    """The columns that a table returns: all, or those that its format chooses."""
    chosen = getattr(table, "format", {})
    everything = chosen.get("columns") is None or chosen.get("output_all_columns", False)
    return [str(n) for n in table.column_names if everything or n in chosen["columns"]]


@final
class _Table(BatchDataSet):
    """A table of the ``datasets`` library: columns, read many rows at a time.

    A table without a format of tensors or arrays is read as NumPy arrays. Reading widens small
    integers to int64, so each column is converted back to the dtype that its feature declares.
    """

    def __init__(self, table: Any) -> None:
        self.names = tuple(_columns_read(table))
        ready = getattr(table, "format", {}).get("type") in ("numpy", "torch")
        self._table = table if ready else table.with_format("numpy", columns=list(self.names))
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
                f"column {name!r} holds {array.dtype} values, which are not numbers; turn them "
                f"into numbers with map(), or leave the column out: remove_columns([{name!r}])"
            )
        declared = self._dtypes[name]
        # Arrow returns read-only memory, which a tensor must not share.
        return torch.from_numpy(np.array(array, dtype=declared or array.dtype))

    def _ragged(self, name: str) -> DataError:
        return DataError(
            f"the rows of column {name!r} differ in length or are not numbers; pad them to one "
            f"length with map(), or leave the column out: remove_columns([{name!r}])"
        )


def _declared_dtype(feature: Any) -> np.dtype[Any] | None:
    """Dtype of the numbers that a feature of the ``datasets`` library holds, else ``None``."""
    while hasattr(feature, "feature"):
        feature = feature.feature
    try:
        dtype = np.dtype(getattr(feature, "dtype", None) or "object")
    except TypeError:
        return None
    return dtype if dtype.kind in "biufc" else None


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
