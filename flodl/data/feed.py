"""Feeds: the ways in which samples get from a data set to the device.

A feed turns the order of an epoch into the tensors of each batch:

- The resident feed keeps the whole data set on the device and gathers rows.
- The streaming feed (:mod:`flodl.data.streaming`) reads each sample once per epoch.
- The cached feed (:mod:`flodl.data.cache`) keeps the samples it has read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import final

import torch
from torch import Tensor

from flodl.data.dataset import BatchDataSet, TensorDataSet, describe
from flodl.data.form import BatchForm
from flodl.data.samples import fields
from flodl.data.seeds import NO_SEEDS, Seeds
from flodl.errors import DataError

_CHUNK_BYTES = 16 * 2**20
"""Read the data set in pieces of about this size: large enough for bulk reads, small in memory."""

_SLICES = 1024
"""Number of batches whose rows are cut from the order at once: cheap, and few at a time."""


class Feed(ABC):
    """Produces the tensors of each batch."""

    @abstractmethod
    def batches(
        self,
        order: Tensor,
        batch_size: int,
        *,
        seeds: Seeds = NO_SEEDS,
        join_remainder: bool = False,
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches of an epoch, or of a part of it.

        Args:
            order: The sample numbers, int64, on the CPU or as :meth:`place` returned them.
            batch_size: Samples per batch; the last batch takes the remaining samples.
            seeds: Random transforms may derive their generators from them.
            join_remainder: Whether a last batch of one sample joins the one before it.
        """

    @property
    def is_resident(self) -> bool:
        """Whether the whole data set is on the device."""
        return False

    @property
    def resident(self) -> tuple[Tensor, ...]:
        """The whole data set, each ``[samples, …]`` on the device; empty if it is not there."""
        return ()

    def place(self, order: Tensor) -> Tensor:
        """Return an order in the memory from which :meth:`batches` best takes parts of it."""
        return order

    def cached(self) -> int:
        """Samples that a cache holds; 0 without one."""
        return 0

    def drop_cached(self, keep: int) -> None:  # noqa: B027 - only a cache has something to drop
        """Drop the samples that were cached last; see :meth:`DataLoader.drop_cached`."""

    @abstractmethod
    def prefetch_depth(self) -> int:
        """Number of batches loaded ahead of the consumer; 0 if none are."""

    @abstractmethod
    def close(self) -> None:
        """End threads and processes; a later epoch starts new ones."""


def rows_of(order: Tensor, batch_size: int, *, join_remainder: bool = False) -> Iterator[Tensor]:
    """Cut an order into the rows of each batch.

    Args:
        order: The sample numbers.
        batch_size: Samples per batch; the last batch takes the remaining samples.
        join_remainder: Whether a last batch of one sample joins the one before it.
    """
    if join_remainder and len(order) > batch_size and len(order) % batch_size == 1:
        whole = len(order) - batch_size - 1
        yield from rows_of(order[:whole], batch_size)
        yield order[whole:]
        return
    stride = batch_size * _SLICES
    for start in range(0, len(order), stride):
        yield from torch.split(order[start : start + stride], batch_size)


@final
class ResidentFeed(Feed):
    """Keeps the whole data set on the device; a batch is a gather of rows.

    Args:
        tensors: One per field.
        device: The device that keeps them.
    """

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        self._tensors = tuple(tensor.to(device) for tensor in tensors)
        self._device = device

    def batches(
        self,
        order: Tensor,
        batch_size: int,
        *,
        seeds: Seeds = NO_SEEDS,  # noqa: ARG002 - no transform runs here
        join_remainder: bool = False,
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the gathered rows of each batch; every tensor has its own memory."""
        gathers = [tensor.index_select for tensor in self._tensors]
        # One transfer for the epoch: one copy per batch would wait for the device each time.
        for rows in rows_of(self.place(order), batch_size, join_remainder=join_remainder):
            # A list is built in half the time of a generator.
            yield tuple([gather(0, rows) for gather in gathers])

    @property
    def is_resident(self) -> bool:
        """Return True."""
        return True

    @property
    def resident(self) -> tuple[Tensor, ...]:
        """The whole data set on the device."""
        return self._tensors

    def place(self, order: Tensor) -> Tensor:
        """Return the order on the device."""
        return order.to(self._device)

    def prefetch_depth(self) -> int:
        """Return 0: the device has all samples."""
        return 0

    def close(self) -> None:
        """Do nothing: there is no thread and no process."""


def resident_bytes(source: BatchDataSet, device: torch.device, sample_bytes: int) -> int:
    """Return the bytes that a data set would add to the memory of a device.

    Args:
        source: The data set.
        device: The device that would keep it.
        sample_bytes: Bytes of one sample.
    """
    if isinstance(source, TensorDataSet):
        # Tensors that are already on the device need no more memory.
        return sum(t.nbytes for t in source.tensors if t.device.type != device.type)
    return sample_bytes * len(source)


def resident_feed(
    source: BatchDataSet, device: torch.device, first: Sequence[Tensor], form: BatchForm
) -> ResidentFeed:
    """Load a data set onto the device.

    Args:
        source: The data set; it has at least one sample.
        device: The device that keeps the tensors.
        first: Its first sample as a batch; it is not read again.
        form: The properties that all batches share.

    Raises:
        DataError: The data set returns malformed batches.
    """
    if isinstance(source, TensorDataSet):
        return ResidentFeed(source.tensors, device)
    n = len(source)
    whole = tuple(torch.empty((n, *t.shape[1:]), dtype=t.dtype, device="cpu") for t in first)
    step = max(1, _CHUNK_BYTES // max(1, form.sample_bytes))
    rows, batch = range(1), first
    while True:
        for target, tensor in zip(whole, batch, strict=True):
            target[rows.start : rows.stop].copy_(tensor)
        if rows.stop == n:
            return ResidentFeed(whole, device)
        rows = range(rows.stop, min(n, rows.stop + step))
        batch = read_rows(source, rows)
        form.check(batch, described(rows), one_shape=True)


def described(rows: Sequence[int]) -> str:
    """The name of a batch in messages."""
    return f"the batch of samples {rows[0]} to {rows[-1]}"


def read_rows(source: BatchDataSet, rows: Sequence[int]) -> tuple[Tensor, ...]:
    """Read some rows, each once, and check their number.

    Args:
        source: The data set.
        rows: Sample numbers.

    Raises:
        DataError: A field is not a tensor, or has another number of rows than asked for.
    """
    where = described(rows)
    batch = fields(source.get_batch(list(rows)), where)
    for position, tensor in enumerate(batch):
        if tensor.dim() == 0 or tensor.shape[0] != len(rows):
            raise DataError(
                f"tensor {position} of {where} is {describe(tensor)}; dimension 0 must have "
                f"{len(rows)} rows"
            )
    return batch
