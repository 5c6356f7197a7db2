"""The largest batches of some data, as a data set of their own."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from flodl.data import BatchDataSet, DataLoader
from flodl.data.adapters import as_batch_data_set, declared_names, stays_in_memory

if TYPE_CHECKING:
    from flodl.data import Batch, IterableLoader

SEARCH_SECONDS = 20.0
"""The search for the largest batches ends after this time."""

_TWO = 2


@final
@dataclass(frozen=True)
class Largest:
    """The largest batches.

    Attributes:
        dataset: Data whose batches they are.
        batch_size: Samples per batch of it; None if it makes its own batches.
        loader_options: Settings of its loader that replace those of the training.
        how: How they were found, for a reader.
    """

    dataset: object
    batch_size: int | None
    loader_options: Mapping[str, Any] = field(default_factory=dict)
    how: str = ""


def find_largest(loader: DataLoader | IterableLoader, dataset: object, count: int) -> Largest:
    """Return ``count`` batches that are as large as the two largest of the first epoch.

    Samples in tensors and arrays all have one size, so nothing is read for them. Other samples are
    read once, for at most :data:`SEARCH_SECONDS`.

    Args:
        loader: The loader of the training, on the CPU.
        dataset: Its data, as the user gave it.
        count: Number of batches wanted.
    """
    if not isinstance(loader, DataLoader):
        return Largest(dataset, loader.batch_size, how="the first batches of the data")
    source = as_batch_data_set(dataset, declared_names(dataset))
    numbers = range(loader.num_batches)
    if stays_in_memory(source):
        # Only the last batch may differ: it is smaller, or has one sample more.
        chosen = sorted(numbers, key=lambda one: -len(loader.rows(0, one)))[:_TWO]
        how = "all batches have samples of one size"
    else:
        chosen, seen = _by_bytes(loader)
        how = f"the largest of {seen} batches"
        if seen < len(numbers):
            how += f" that were read in {SEARCH_SECONDS:g} s; an epoch has {len(numbers)}"
    batches = [loader.rows(0, number) for number in chosen]
    rows = [batches[one % len(batches)] for one in range(count)]
    size = max(len(one) for one in rows)
    rows = [one if len(one) == size else rows[0] for one in rows]
    options: dict[str, Any] = {
        "shuffle": False, "sampler": None, "drop_last": False, "join_remainder": False
    }  # fmt: skip
    if loader.names is not None:
        options["names"] = loader.names
    return Largest(Rows(source, torch.cat(rows).tolist()), size, options, how)


def _by_bytes(loader: DataLoader) -> tuple[list[int], int]:
    """The numbers of the two batches with the most bytes, and how many batches were read."""
    end = time.monotonic() + SEARCH_SECONDS
    sizes: list[tuple[int, int]] = []
    for number, (_, batch) in enumerate(loader.deliver(0, 0, loader.num_batches)):
        sizes.append((_bytes(batch), -number))
        if time.monotonic() > end:
            break
    return [-number for _, number in heapq.nlargest(_TWO, sizes)], len(sizes)


def _bytes(batch: Batch) -> int:
    found: Iterable[Any] = batch
    return sum(one.nbytes for one in found if isinstance(one, Tensor))


@final
class Rows(BatchDataSet):
    """Some samples of a data set, in a given order.

    Args:
        source: The data set.
        rows: Numbers of its samples; one may occur several times.
    """

    def __init__(self, source: BatchDataSet, rows: Sequence[int]) -> None:
        self._source = source
        self._rows = rows
        self.names = declared_names(source)

    def __len__(self) -> int:
        return len(self._rows)

    def get_batch(self, indices: Sequence[int]) -> Sequence[Tensor]:
        """Return the samples at these places."""
        return self._source.get_batch([self._rows[one] for one in indices])
