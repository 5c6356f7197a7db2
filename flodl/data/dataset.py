"""What a data set is, and how anything that resembles one becomes a :class:`BatchDataSet`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, final, runtime_checkable

import torch
import torch.utils.data
from torch import Tensor

from flodl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable


class DataSet(ABC):
    """Samples read one at a time.

    A ``names`` attribute, where a data set has one, names the tensors of a sample.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def get(self, index: int) -> Sequence[Tensor]:
        """Return the tensors of one sample, without a batch dimension."""

    @final
    def __getitem__(self, index: int) -> Sequence[Tensor]:
        """Return what :meth:`get` does, so that the data set also feeds torch's own loader."""
        return self.get(index)


class BatchDataSet(ABC):
    """Samples read many at a time, for data that can be gathered at once.

    A ``names`` attribute, where a data set has one, names the tensors of a batch.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def get_batch(self, indices: Sequence[int]) -> Sequence[Tensor]:
        """Return one tensor per field; dimension 0 runs over ``indices``, in their order."""

    @final
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        """Return one sample, so that the data set also feeds torch's own loader."""
        return tuple(tensor[0] for tensor in self.get_batch([index]))


class TensorDataSet(BatchDataSet):
    """A data set whose fields are whole tensors in memory.

    Args:
        tensors: One tensor per field; all have the same length in dimension 0.
        names: One name per tensor; ``"0"``, ``"1"``, … without.

    Raises:
        DataError: No tensor, or tensors of different lengths.
        ValueError: Another number of names than of tensors.
    """

    def __init__(self, *tensors: Tensor, names: Sequence[str] | None = None) -> None:
        lengths = [int(tensor.shape[0]) if tensor.dim() else 0 for tensor in tensors]
        if len(set(lengths)) != 1:
            raise DataError(
                f"the tensors of a data set need one common length in dimension 0, got {lengths}"
            )
        self.tensors = tensors
        self.names = field_names(names, len(tensors))
        self._n = lengths[0]

    @final
    def __len__(self) -> int:
        return self._n

    @final
    def get_batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """Return the rows of every tensor.

        Raises:
            IndexError: An index below 0 or not below the number of samples.
        """
        rows = torch.as_tensor(indices, dtype=torch.int64)
        outside = rows[(rows < 0) | (rows >= self._n)]
        if outside.numel():
            raise IndexError(
                f"index {int(outside[0])} is outside of a data set of {self._n} samples "
                f"(0 to {self._n - 1})"
            )
        return tuple(tensor.index_select(0, rows.to(tensor.device)) for tensor in self.tensors)


@runtime_checkable
class _MapStyle(Protocol):
    """What torch calls a map-style data set."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


@final
class _Stacked(BatchDataSet):
    """Turns a data set that yields single samples into one that yields batches."""

    def __init__(self, samples: _MapStyle) -> None:
        self._samples = samples

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
        return fields(self._samples[index], f"sample {index}")


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
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{where} is a {type(value).__name__}; return tensors (or numbers), for an image "
            "for instance through a transform that makes one"
        ) from error


def as_batch_data_set(source: object) -> BatchDataSet:
    """See any data set as a :class:`BatchDataSet`.

    Args:
        source: A :class:`BatchDataSet`, a :class:`DataSet`, or a map-style data set of torch
            (``__len__`` and ``__getitem__``).

    Raises:
        TypeError: It is none of these.
    """
    if isinstance(source, BatchDataSet):
        return source
    if isinstance(source, torch.utils.data.TensorDataset):
        return TensorDataSet(*source.tensors)
    if isinstance(source, _MapStyle) and not isinstance(source, Mapping):
        return _Stacked(source)
    raise TypeError(
        f"{type(source).__name__} is not a data set: derive from flodl.DataSet or "
        "flodl.BatchDataSet, or give it __len__ and __getitem__ like a map-style data set of torch"
    )


def declared_names(source: object) -> Sequence[str] | None:
    """Names a data set gives its fields: its ``names``, else the keys of a mapping sample."""
    names = getattr(source, "names", None)
    if isinstance(names, (tuple, list)) and all(isinstance(name, str) for name in names):
        return names
    if isinstance(source, _MapStyle) and not isinstance(source, (BatchDataSet, DataSet)):
        sample = source[0]
        if isinstance(sample, Mapping):
            return [str(key) for key in sample]
    return None


def field_names(names: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """Check the names of ``count`` fields, or number them.

    Raises:
        ValueError: Another number of names, or one of them twice.
    """
    if names is None:
        return tuple(str(position) for position in range(count))
    if isinstance(names, str) or len(names) != count:
        raise ValueError(
            f"names={names!r}, but a sample has {count} tensors; give a list of {count} names"
        )
    if len(set(names)) != count:
        raise ValueError(f"names={list(names)!r}: each tensor needs a name of its own")
    return tuple(names)


def describe(tensor: Tensor) -> str:
    """Shape and dtype of a tensor, for messages."""
    return f"{list(tensor.shape)} {tensor.dtype}"
