"""One batch: tensors in a fixed order, each with a name."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import final

import torch
from torch import Tensor

from flodl.data.form import BatchForm


@final
class Batch:
    """Tensors of one batch, accessed by position or by name.

    ``len(batch)`` counts the tensors, so that ``image, label = batch`` unpacks them;
    :attr:`batch_size` counts the samples.

    Args:
        tensors: One tensor per field; dimension 0 runs over the samples.
        names: One name per tensor.
    """

    __slots__ = ("_names", "_tensors")

    _names: tuple[str, ...]
    _tensors: tuple[Tensor, ...]

    def __init__(self, tensors: Sequence[Tensor], names: Sequence[str]) -> None:
        self._tensors = tuple(tensors)
        self._names = tuple(names)
        if len(self._tensors) != len(self._names):
            raise ValueError(
                f"a batch of {len(self._tensors)} tensors needs as many names, "
                f"got {len(self._names)}: {', '.join(self._names) or 'none'}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors, in order."""
        return self._names

    @property
    def batch_size(self) -> int:
        """Number of samples: the length of dimension 0."""
        return int(self._tensors[0].shape[0])

    def keys(self) -> tuple[str, ...]:
        """Names of the tensors, so that ``model(**batch)`` and ``dict(batch)`` work."""
        return self._names

    def has(self, name: str) -> bool:
        """Whether the batch has a tensor of that name."""
        return name in self._names

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """Return the batch with every tensor on ``device``."""
        moved = [tensor.to(device, non_blocking=non_blocking) for tensor in self._tensors]
        return Batch(moved, self._names)

    def __getitem__(self, key: int | str) -> Tensor:
        if isinstance(key, str):
            try:
                return self._tensors[self._names.index(key)]
            except ValueError:
                known = ", ".join(repr(name) for name in self._names)
                raise KeyError(f"the batch has no {key!r}; it has {known}") from None
        try:
            return self._tensors[key]
        except IndexError:
            raise IndexError(
                f"the batch has {len(self._tensors)} tensors, there is no number {key}"
            ) from None

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{name}: {list(tensor.shape)} {tensor.dtype}"
            for name, tensor in zip(self._names, self._tensors, strict=True)
        )
        return f"Batch({fields})"


@final
class Position:
    """How far the consumer is: epoch and batch.

    Args:
        epoch: Number of the epoch.
        batch: Number of its batches that were delivered.
    """

    __slots__ = ("batch", "epoch")

    def __init__(self, epoch: int, batch: int) -> None:
        self.epoch = epoch
        self.batch = batch


def deliver(
    source: Iterator[tuple[Tensor, ...]], form: BatchForm, position: Position
) -> Generator[Batch]:
    """Deliver batches one by one and count them.

    Args:
        source: The tensors of each batch, as many as there are names.
        form: Knows the names once the first batch is read.
        position: Counted up before each batch is delivered.
    """
    # On a tiny model this loop takes a visible part of a step. The feed has checked the number of
    # tensors once, so each batch is made without checking it again.
    new = Batch.__new__
    names: tuple[str, ...] | None = None
    for tensors in source:
        if names is None:
            names = form.names or ()
        position.batch += 1
        batch = new(Batch)
        batch._tensors = tensors
        batch._names = names
        yield batch
