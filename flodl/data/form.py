"""The properties that all batches of a data set share, learned from the first one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from flodl.data.dataset import describe, field_names
from flodl.errors import DataError


def _no_keys() -> None:
    return None


@final
class BatchForm:
    """Number, names and dtypes of the tensors of a batch.

    Learning them needs no extra read: they come from the first batch that is read anyway.

    Args:
        declared: Names of the tensors from the caller or the data set.
        keys: Returns the keys of the mappings that were read; ``None`` if there were no mappings.

    Raises:
        ValueError: A name occurs twice, or ``declared`` is a single string.
    """

    __slots__ = ("_declared", "_dtypes", "_keys", "_shapes", "names", "sample_bytes")

    def __init__(
        self,
        declared: Sequence[str] | None,
        keys: Callable[[], Sequence[str] | None] = _no_keys,
    ) -> None:
        if isinstance(declared, str):
            raise ValueError(f"names={declared!r} is one string; give a list of names")
        self._declared = None if declared is None else field_names(declared, len(declared))
        self._keys = keys
        self._dtypes: list[torch.dtype] | None = None
        self._shapes: list[torch.Size] = []
        self.names: tuple[str, ...] | None = self._declared
        self.sample_bytes = 0
        """Bytes of one sample; 0 while it is unknown."""

    def check(self, batch: Sequence[Tensor], where: str, *, one_shape: bool = False) -> None:
        """Compare a batch with the first one; the first batch sets the properties.

        Args:
            batch: One tensor per field; dimension 0 runs over the samples.
            where: Name of the batch in messages.
            one_shape: Whether the shapes after dimension 0 must agree, too.

        Raises:
            DataError: Number, dtype or shape of the tensors differ.
            ValueError: The number of names is not the number of tensors.
        """
        self.count(batch, where)
        for position, (tensor, dtype) in enumerate(zip(batch, self._dtypes or (), strict=True)):
            shape = self._shapes[position]
            if tensor.dtype != dtype or (one_shape and tensor.shape[1:] != shape):
                raise DataError(
                    f"tensor {position} of {where} is {describe(tensor)}, in the first batch it "
                    f"was {['N', *shape]} {dtype}; "
                    + ("shape and dtype" if one_shape else "the dtype")
                    + " of a sample must not change"
                )

    def count(self, batch: Sequence[Tensor], where: str) -> None:
        """Compare only the number of tensors with the first batch; the first batch sets it.

        Raises:
            DataError: It differs.
            ValueError: The number of names is not the number of tensors.
        """
        if self._dtypes is None:
            self._learn(batch)
        elif len(batch) != len(self._dtypes):
            raise DataError(
                f"{where} has {len(batch)} tensors, an earlier one had {len(self._dtypes)}; every "
                "batch needs the same number"
            )

    def _learn(self, batch: Sequence[Tensor]) -> None:
        names = self._keys() if self._declared is None else self._declared
        self.names = field_names(names, len(batch))
        self._shapes = [tensor.shape[1:] for tensor in batch]
        self.sample_bytes = sum(t.nbytes // max(1, len(t)) if t.dim() else t.nbytes for t in batch)
        self._dtypes = [tensor.dtype for tensor in batch]
