"""The cached feed: reads each sample from the data set once, then from memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import final

import numpy as np
import torch
from torch import Tensor

from flodl.data.budget import Memory
from flodl.data.dataset import describe
from flodl.data.feed import Feed, ResidentFeed, rows_of
from flodl.data.seeds import NO_SEEDS, Seeds
from flodl.data.streaming import StreamingFeed
from flodl.data.transfer import transfer_to
from flodl.errors import DataError
from flodl.log import verbose

_ABSENT = -1


@final
class SampleStore:
    """Samples in host memory, by number, up to a number of bytes.

    Args:
        samples: Number of samples in the data set.
        budget: Returns the bytes that may be used; called once, when the first batch is kept.
    """

    def __init__(self, samples: int, budget: Callable[[], int]) -> None:
        self._samples = samples
        self._budget = budget
        self._slots = torch.full((samples,), _ABSENT, dtype=torch.int64, device="cpu")
        self._tensors: tuple[Tensor, ...] | None = None
        self._capacity = samples
        self._kept = torch.empty(samples, dtype=torch.int64, device="cpu")
        """Numbers of the samples that are kept, in the order in which they came."""
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def drop(self, keep: int) -> None:
        """Drop the samples that came last, so that the first ``keep`` are left."""
        self._slots[self._kept[keep : self._used]] = _ABSENT
        self._used = min(self._used, keep)

    def lacks(self, rows: Tensor) -> Tensor:
        """Tell for each sample number whether it still has to be read, ``[samples]`` bool."""
        return self._slots[rows] == _ABSENT

    def keep(self, rows: Tensor, batch: Sequence[Tensor]) -> None:
        """Keep samples that were read, as far as the budget allows.

        Args:
            rows: Their numbers.
            batch: One tensor per field; dimension 0 runs over ``rows``.

        Raises:
            DataError: Their shape differs from that of earlier samples.
        """
        stored = self._stored(batch)
        for position, (tensor, store) in enumerate(zip(batch, stored, strict=True)):
            if tensor.shape[1:] != store.shape[1:]:
                raise DataError(
                    f"tensor {position} of a batch is {describe(tensor)} and the samples before "
                    f"it were {['N', *store.shape[1:]]}: a cache keeps samples of one shape; pad "
                    "them to one, or leave out the cache"
                )
        room = self._capacity - self._used
        lacking = self.lacks(rows).nonzero().flatten()
        # A sampler may draw a sample twice; it is kept once.
        distinct, first = np.unique(rows[lacking].numpy(), return_index=True)
        numbers, fresh = rows, [tensor.to("cpu") for tensor in batch]
        if len(distinct) < len(rows) or len(rows) > room:
            numbers = torch.from_numpy(distinct)[:room]
            places = lacking[torch.from_numpy(first)][:room]
            fresh = [tensor.index_select(0, places) for tensor in fresh]
        slots = numbers
        if self._capacity < self._samples:
            slots = torch.arange(self._used, self._used + len(numbers), device="cpu")
        for store, tensor in zip(stored, fresh, strict=True):
            store.index_copy_(0, slots, tensor)
        self._slots[numbers] = slots
        self._kept[self._used : self._used + len(numbers)] = numbers
        self._used += len(numbers)

    def gather(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return kept samples as a batch in new memory."""
        slots = self._slots[rows]
        return tuple(tensor.index_select(0, slots) for tensor in self._tensors or ())

    def whole(self) -> tuple[Tensor, ...] | None:
        """Return all samples in the order of their numbers; ``None`` while some are missing."""
        return self._tensors if self._used == self._samples else None

    def _stored(self, batch: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if self._tensors is None:
            each = sum(tensor.nbytes for tensor in batch) // len(batch[0])
            self._capacity = min(self._samples, self._budget() // max(1, each))
            if self._capacity < self._samples:
                verbose(
                    "the cache has space for {} of {} samples; the others are read in each epoch",
                    self._capacity,
                    self._samples,
                )
            # The system allocates these pages when they are written to, not now.
            self._tensors = tuple(
                torch.empty((self._capacity, *tensor.shape[1:]), dtype=tensor.dtype, device="cpu")
                for tensor in batch
            )
        return self._tensors


@final
class CachedFeed(Feed):
    """Reads the samples it lacks and takes the others from memory.

    Args:
        reader: Reads samples into host memory.
        store: Keeps them.
        device: The device for the batches.
        memory: The memory of the device; a complete cache moves there if it fits.
    """

    def __init__(
        self,
        reader: StreamingFeed,
        store: SampleStore,
        device: torch.device,
        memory: Memory,
    ) -> None:
        self._reader = reader
        self._store = store
        self._device = device
        self._memory = memory
        self._transfer = transfer_to(device)
        self._resident: ResidentFeed | None = None
        self._settled = False

    def batches(
        self,
        order: Tensor,
        batch_size: int,
        *,
        seeds: Seeds = NO_SEEDS,
        join_remainder: bool = False,
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches in order; reads only samples that are not in memory."""
        if not self._settled:
            self._settle()
        if self._resident is not None:
            yield from self._resident.batches(order, batch_size, join_remainder=join_remainder)
            return
        cut = partial(rows_of, batch_size=batch_size, join_remainder=join_remainder)
        # Decided for all batches at once: kept samples stay, so this holds until the last batch.
        lacking = self._store.lacks(order)
        absent = torch.where(lacking, order, _ABSENT)
        to_read = partial(_to_read, cut, absent)
        with closing(self._reader.read(to_read, seeds, each_sample=True)) as read:
            for rows, missing in zip(cut(order), cut(lacking), strict=True):
                yield self._transfer.deliver(self._batch(rows, missing, read))

    def cached(self) -> int:
        """Samples that are in memory."""
        return len(self._store)

    def drop_cached(self, keep: int) -> None:
        """Read the samples again that were cached after the first ``keep``."""
        if not self._settled:
            self._store.drop(keep)

    @property
    def is_resident(self) -> bool:
        """Whether every sample is kept and is on the device."""
        return self._resident is not None

    def prefetch_depth(self) -> int:
        """Batches read ahead of the consumer."""
        return 0 if self._resident is not None else self._reader.prefetch_depth()

    def close(self) -> None:
        """End the thread and the processes that read; kept samples stay."""
        self._reader.close()

    def _batch(
        self, rows: Tensor, missing: Tensor, read: Iterator[tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        if not missing.any():
            return self._store.gather(rows)
        fresh = next(read)
        self._store.keep(rows[missing], fresh)
        if missing.all():
            return fresh
        here = self._store.gather(rows[~missing])
        return tuple(_merged(missing, new, old) for new, old in zip(fresh, here, strict=True))

    def _settle(self) -> None:
        """Turn a complete cache into a data set on the device, if it fits there."""
        whole = self._store.whole()
        if whole is None:
            return
        self._settled = True
        if self._device.type != "cpu" and not self._memory.holds(sum(t.nbytes for t in whole)):
            return
        with suppress(torch.OutOfMemoryError):
            self._resident = ResidentFeed(whole, self._device)


def _to_read(cut: Callable[[Tensor], Iterator[Tensor]], absent: Tensor) -> Iterator[Tensor]:
    for rows in cut(absent):
        missing = rows[rows != _ABSENT]
        if len(missing):
            yield missing


def _merged(missing: Tensor, new: Tensor, old: Tensor) -> Tensor:
    batch = new.new_empty((len(missing), *new.shape[1:]))
    batch[missing] = new
    batch[~missing] = old
    return batch
