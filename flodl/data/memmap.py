"""Data sets over NumPy arrays, especially over files larger than the memory."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from flodl.data.dataset import BatchDataSet, field_names
from flodl.errors import DataError

_ARCHIVE = b"PK"


@final
class MemmapDataSet(BatchDataSet):
    """Fields that are NumPy arrays or ``.npy`` files; files are mapped, never read as a whole.

    A batch reads only its own rows, in their order in the file. They are copied once and returned
    in the order asked for. Pickling keeps the paths and not the content.

    Args:
        arrays: One per field: an array, a memory map (``numpy.memmap`` reads raw binary files), or
            the path of a ``.npy`` file.
        names: One name per array; default ``"0"``, ``"1"``, ….

    Raises:
        DataError: There is no array, arrays have different lengths, a file is not a ``.npy`` file,
            or values are not numbers.
        ValueError: The number of names is not the number of arrays.
    """

    def __init__(
        self,
        *arrays: np.ndarray[Any, Any] | str | os.PathLike[str],
        names: Sequence[str] | None = None,
    ) -> None:
        # Absolute: another process opens the files itself, in any working directory.
        self._given = tuple(
            Path(array).absolute() if isinstance(array, (str, os.PathLike)) else array
            for array in arrays
        )
        opened = [_open(array, position) for position, array in enumerate(self._given)]
        lengths = [len(array) for array in opened]
        if len(set(lengths)) != 1:
            raise DataError(
                f"the arrays of a data set need one common length in dimension 0, got {lengths}"
            )
        self.arrays = tuple(opened)
        self.names = field_names(names, len(opened))
        self._n = lengths[0]

    def __len__(self) -> int:
        return self._n

    def __reduce__(self) -> tuple[object, ...]:
        return partial(MemmapDataSet, names=self.names), self._given

    def get_batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """Return the rows of every array.

        Raises:
            IndexError: An index is below 0, or not below the number of samples.
        """
        rows = np.asarray(indices, dtype=np.int64)
        outside = rows[(rows < 0) | (rows >= self._n)]
        if outside.size:
            raise IndexError(
                f"index {int(outside[0])} is outside of a data set of {self._n} samples "
                f"(0 to {self._n - 1})"
            )
        # A disk and its read-ahead are fastest with ascending positions.
        order = np.argsort(rows, kind="stable")
        return tuple(_gather(array, rows, order) for array in self.arrays)


def _gather(
    array: np.ndarray[Any, Any], rows: np.ndarray[Any, Any], order: np.ndarray[Any, Any]
) -> Tensor:
    gathered = np.empty((len(rows), *array.shape[1:]), dtype=array.dtype.newbyteorder("="))
    gathered[order] = array[rows[order]]
    return torch.from_numpy(gathered)


def _open(
    array: np.ndarray[Any, Any] | str | os.PathLike[str], position: int
) -> np.ndarray[Any, Any]:
    if isinstance(array, (str, os.PathLike)):
        where = str(array)
        opened = _mapped(Path(array))
    else:
        where, opened = f"array {position}", array
    if opened.ndim == 0:
        raise DataError(f"{where}: a single value; a field needs one row per sample")
    try:
        torch.from_numpy(np.empty(0, opened.dtype.newbyteorder("=")))
    except TypeError as error:
        raise DataError(
            f"{where}: torch has no tensor for {opened.dtype} values; store plain numbers"
        ) from error
    return opened


def _mapped(path: Path) -> np.ndarray[Any, Any]:
    try:
        with path.open("rb") as file:
            begin = file.read(len(_ARCHIVE))
        if begin == _ARCHIVE:
            raise DataError(
                f"{path}: an archive of several arrays (.npz) cannot be mapped; save each array "
                "to a .npy file of its own and pass one path per field"
            )
        with warnings.catch_warnings():
            # NumPy parses a damaged header as Python code, which warns before it fails.
            warnings.simplefilter("ignore")
            return np.lib.format.open_memmap(path, mode="r")
    except DataError:
        raise
    except Exception as error:  # the header parser lets many types of exception through
        raise DataError(
            f"{path}: cannot be mapped as a .npy file: {error}; write it with numpy.save, or "
            "pass a numpy.memmap for a raw binary file"
        ) from error
