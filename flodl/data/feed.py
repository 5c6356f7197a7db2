"""How samples get from a data set to the device: the strategy behind the loader.

A feed answers one question: given the rows of each batch, produce the tensors of each batch. The
resident feed keeps the whole data set on the device and gathers; a feed that streams would load
ahead of the consumer. Which one is used is decided once, by plain functions of sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, final

import psutil
import torch

from flodl.data.dataset import BatchDataSet, TensorDataSet, describe, fields
from flodl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

_CHUNK_BYTES = 16 * 2**20
"""Read the data set in pieces of about this size: large enough for bulk reads, small beside it."""


class Feed(ABC):
    """Produces the tensors of each batch."""

    @property
    @abstractmethod
    def field_count(self) -> int:
        """Number of tensors in a batch."""

    @abstractmethod
    def batches(self, rows: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
        """Yield one tuple of tensors per entry of ``rows``.

        Args:
            rows: The sample numbers of each batch, int64 on the CPU; slices of one tensor.
        """


@final
class ResidentFeed(Feed):
    """The whole data set lives on the device; a batch is a gather of rows."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        self._tensors = tuple(tensor.to(device) for tensor in tensors)
        self._device = device

    @property
    def field_count(self) -> int:
        """Number of tensors in a batch."""
        return len(self._tensors)

    def batches(self, rows: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
        """Yield the gathered rows of each batch; every tensor is the consumer's own."""
        if not rows:
            return
        # One transfer for the epoch: a copy per batch would wait for the device every time.
        order = torch.cat(list(rows)).to(self._device)
        for index in torch.split(order, [len(row) for row in rows]):
            yield tuple(tensor.index_select(0, index) for tensor in self._tensors)


def resident_feed(source: BatchDataSet, device: torch.device, *, budget: int) -> ResidentFeed:
    """Load a data set onto the device.

    Args:
        source: The data set; it has at least one sample.
        device: Where the tensors shall live.
        budget: Bytes they may take there.

    Raises:
        DataError: The data set needs more than the budget, or gives malformed batches.
    """
    if isinstance(source, TensorDataSet):
        # Tensors that are on the device already cost nothing more.
        moving = [tensor for tensor in source.tensors if tensor.device.type != device.type]
        _check_budget(sum(tensor.nbytes for tensor in moving), budget, len(source), device)
        return ResidentFeed(source.tensors, device)
    sample = read_rows(source, range(1))
    sample_bytes = sum(tensor.nbytes for tensor in sample)
    _check_budget(sample_bytes * len(source), budget, len(source), device)
    return ResidentFeed(_read_all(source, sample, sample_bytes), device)


def read_rows(
    source: BatchDataSet, rows: Sequence[int], like: Sequence[Tensor] | None = None
) -> tuple[Tensor, ...]:
    """Read some rows and check what came.

    Args:
        source: The data set.
        rows: Sample numbers.
        like: A batch read before: number, trailing shape and dtype of the tensors must agree.

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
        if like is not None and (
            tensor.shape[1:] != like[position].shape[1:] or tensor.dtype != like[position].dtype
        ):
            raise DataError(
                f"tensor {position} of {where} is {describe(tensor)}, in the batch before it was "
                f"{describe(like[position])}; shape and dtype of a sample must not change"
            )
    return batch


def _read_all(
    source: BatchDataSet, sample: Sequence[Tensor], sample_bytes: int
) -> tuple[Tensor, ...]:
    n = len(source)
    whole = tuple(torch.empty((n, *t.shape[1:]), dtype=t.dtype) for t in sample)
    step = max(1, _CHUNK_BYTES // max(1, sample_bytes))
    for start in range(0, n, step):
        rows = range(start, min(n, start + step))
        for target, tensor in zip(whole, read_rows(source, rows, like=sample), strict=True):
            target[rows.start : rows.stop].copy_(tensor)
    return whole


def memory_budget(device: torch.device, *, vram_max_usage: float) -> int:
    """Bytes a resident data set may take on a device right now."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return vram_budget(free=free, total=total, usage=vram_max_usage)
    return int(psutil.virtual_memory().available) // 2


def vram_budget(*, free: int, total: int, usage: float) -> int:
    """Bytes that may still be taken so that at most ``usage`` of ``total`` are in use.

    ``usage`` is clamped to 0.50 … 0.99.
    """
    usage = min(0.99, max(0.50, usage))
    return max(0, int(usage * total) - (total - free))


def _check_budget(needed: int, budget: int, n: int, device: torch.device) -> None:
    if needed > budget:
        limit = "the allowance" if device.type == "cuda" else "half of the available memory"
        raise DataError(
            f"the data set needs {_mebibytes(needed)} on {device} ({n:,} samples) and {limit} is "
            f"{_mebibytes(budget)}; free some memory, use fewer samples, or store them in a "
            "smaller dtype"
        )


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
