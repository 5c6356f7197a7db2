"""How samples get from a data set to the device: the strategy behind the loader.

A feed answers one question: given the order of an epoch, produce the tensors of each batch. The
resident feed keeps the whole data set on the device and gathers; the streaming feed
(:mod:`flodl.data.streaming`) loads ahead of the consumer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, final

import torch

from flodl.data.adapters import fields
from flodl.data.dataset import BatchDataSet, TensorDataSet, describe
from flodl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

_CHUNK_BYTES = 16 * 2**20
"""Read the data set in pieces of about this size: large enough for bulk reads, small beside it."""

_SLICES = 1024
"""Cut the order of an epoch into the rows of that many batches at once: cheap, and never many."""


class Feed(ABC):
    """Produces the tensors of each batch."""

    @abstractmethod
    def batches(
        self, order: Tensor, batch_size: int, *, seed: int = 0, join_remainder: bool = False
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches of an epoch, or of a part of it.

        Args:
            order: The sample numbers, int64, on the CPU or as :meth:`place` gave them.
            batch_size: Samples per batch; the last batch takes what remains.
            seed: What random transforms of worker processes may derive their generators from.
            join_remainder: Whether a last batch of one sample joins the one before it.
        """

    def place(self, order: Tensor) -> Tensor:
        """Return an order where parts of it are best handed to :meth:`batches`."""
        return order

    @abstractmethod
    def prefetch_depth(self) -> int:
        """Batches loaded ahead of the consumer; 0 where nothing is."""

    @abstractmethod
    def close(self) -> None:
        """Give back threads and processes; a later epoch takes new ones."""


def rows_of(order: Tensor, batch_size: int, *, join_remainder: bool = False) -> Iterator[Tensor]:
    """Cut an order into the rows of each batch.

    Args:
        order: The sample numbers.
        batch_size: Samples per batch; the last takes what remains.
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
    """The whole data set lives on the device; a batch is a gather of rows.

    Args:
        tensors: One per field.
        device: Where they shall live.
    """

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        self._tensors = tuple(tensor.to(device) for tensor in tensors)
        self._device = device

    def batches(
        self,
        order: Tensor,
        batch_size: int,
        *,
        seed: int = 0,  # noqa: ARG002 - samples are read once
        join_remainder: bool = False,
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the gathered rows of each batch; every tensor is the consumer's own."""
        gathers = [tensor.index_select for tensor in self._tensors]
        # One transfer for the epoch: a copy per batch would wait for the device every time.
        for rows in rows_of(self.place(order), batch_size, join_remainder=join_remainder):
            # A list is put together in half the time of a generator.
            yield tuple([gather(0, rows) for gather in gathers])

    def place(self, order: Tensor) -> Tensor:
        """Return the order on the device."""
        return order.to(self._device)

    def prefetch_depth(self) -> int:
        """Zero: everything is there already."""
        return 0

    def close(self) -> None:
        """Do nothing: there is neither a thread nor a process."""


def resident_bytes(source: BatchDataSet, device: torch.device, sample: Sequence[Tensor]) -> int:
    """Bytes that a data set would add to the memory of a device.

    Args:
        source: The data set.
        device: Where it would live.
        sample: A batch of one sample of it.
    """
    if isinstance(source, TensorDataSet):
        # Tensors that are on the device already cost nothing more.
        return sum(t.nbytes for t in source.tensors if t.device.type != device.type)
    return sum(tensor.nbytes for tensor in sample) * len(source)


def resident_feed(
    source: BatchDataSet, device: torch.device, sample: Sequence[Tensor]
) -> ResidentFeed:
    """Load a data set onto the device.

    Args:
        source: The data set; it has at least one sample.
        device: Where the tensors shall live.
        sample: A batch of one sample of it.

    Raises:
        DataError: The data set gives malformed batches.
    """
    if isinstance(source, TensorDataSet):
        return ResidentFeed(source.tensors, device)
    n = len(source)
    whole = tuple(torch.empty((n, *t.shape[1:]), dtype=t.dtype, device="cpu") for t in sample)
    step = max(1, _CHUNK_BYTES // max(1, sum(tensor.nbytes for tensor in sample)))
    for start in range(0, n, step):
        rows = range(start, min(n, start + step))
        for target, tensor in zip(whole, read_rows(source, rows, like=sample), strict=True):
            target[rows.start : rows.stop].copy_(tensor)
    return ResidentFeed(whole, device)


def read_rows(
    source: BatchDataSet,
    rows: Sequence[int],
    like: Sequence[Tensor] | None = None,
    *,
    one_shape: bool = True,
) -> tuple[Tensor, ...]:
    """Read some rows and check what came.

    Args:
        source: The data set.
        rows: Sample numbers.
        like: A batch read before: number and dtype of the tensors must agree.
        one_shape: Whether their shapes behind dimension 0 must agree, too.

    Raises:
        DataError: They do not agree, or a tensor has another number of rows than asked for.
    """
    where = f"the batch of samples {rows[0]} to {rows[-1]}"
    batch = fields(source.get_batch(list(rows)), where)
    if like is not None and len(batch) != len(like):
        raise DataError(
            f"{where} has {len(batch)} tensors, an earlier one had {len(like)}; every batch "
            "needs the same number"
        )
    for position, tensor in enumerate(batch):
        if tensor.dim() == 0 or tensor.shape[0] != len(rows):
            raise DataError(
                f"tensor {position} of {where} is {describe(tensor)}; dimension 0 must have "
                f"{len(rows)} rows"
            )
        if like is None:
            continue
        model = like[position]
        if tensor.dtype != model.dtype or (one_shape and tensor.shape[1:] != model.shape[1:]):
            raise DataError(
                f"tensor {position} of {where} is {describe(tensor)}, in the batch before it was "
                f"{describe(model)}; "
                + ("shape and dtype" if one_shape else "the dtype")
                + " of a sample must not change"
            )
    return batch
