"""Data sets: samples with numbers, read one at a time or many at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from flodl.errors import DataError


class DataSet(ABC):
    """Samples read one at a time.

    An optional attribute ``names`` names the tensors of a sample.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def get(self, index: int) -> Sequence[Tensor]:
        """Return the tensors of one sample, without a batch dimension."""

    @final
    def __getitem__(self, index: int) -> Sequence[Tensor]:
        """Return the result of :meth:`get`, so that torch's own loader can read the data set."""
        return self.get(index)


class BatchDataSet(ABC):
    """Samples read many at a time, for data that can be gathered at once.

    An optional attribute ``names`` names the tensors of a batch.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def get_batch(self, indices: Sequence[int]) -> Sequence[Tensor]:
        """Return one tensor per field; dimension 0 runs over ``indices``, in their order.

        The loader then owns the tensors. It reads further batches while the training still uses
        these, so the data set must not write into them again.
        """

    @final
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        """Return one sample, so that the data set also works in torch's own loader."""
        return tuple(tensor[0] for tensor in self.get_batch([index]))


class TensorDataSet(BatchDataSet):
    """A data set whose fields are whole tensors in memory.

    Args:
        tensors: One tensor per field; all have the same length in dimension 0.
        names: One name per tensor; default ``"0"``, ``"1"``, ….

    Raises:
        DataError: There is no tensor, or the tensors have different lengths.
        ValueError: The number of names is not the number of tensors.
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
            IndexError: An index is below 0, or not below the number of samples.
        """
        rows = torch.as_tensor(indices, dtype=torch.int64, device="cpu")
        outside = rows[(rows < 0) | (rows >= self._n)]
        if outside.numel():
            raise IndexError(
                f"index {int(outside[0])} is outside of a data set of {self._n} samples "
                f"(0 to {self._n - 1})"
            )
        return tuple(tensor.index_select(0, rows.to(tensor.device)) for tensor in self.tensors)


def field_names(names: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """Check the names of ``count`` fields, or number them.

    Raises:
        ValueError: The number of names is wrong, or a name occurs twice.
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
