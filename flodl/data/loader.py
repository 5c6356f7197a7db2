"""Batches of a data set, epoch by epoch, in an order that only the seed and the epoch decide."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, final

import torch

from flodl.data.batch import Batch
from flodl.data.dataset import as_batch_data_set, declared_names, field_names
from flodl.data.feed import memory_budget, resident_feed
from flodl.data.sampler import RandomSampler, Sampler, SequentialSampler, epoch_order
from flodl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor


@final
class DataLoader:
    """Iterates over a data set in batches.

    The data set is read once, when the loader is made, and kept on the device in its own dtype;
    a batch gathers rows there. A random transform inside the data set therefore acts once per
    sample and not once per epoch: put augmentation into the training step.

    Args:
        dataset: A :class:`~flodl.data.dataset.DataSet`, a
            :class:`~flodl.data.dataset.BatchDataSet`, or any map-style data set of torch.
        batch_size: Samples per batch, at least 1.
        device: Where the batches shall be.
        seed: Decides the order together with the epoch.
        shuffle: Draw a new order each epoch; otherwise first to last.
        sampler: Decides the order instead of ``seed`` and ``shuffle``.
        names: Names of the tensors of a batch. Default: those the data set declares (its
            ``names``, or the keys of samples that are mappings), else ``"0"``, ``"1"``, ….
        drop_last: Leave out a last batch that is not full.
        vram_max_usage: On a CUDA device, the part of its memory that may be in use once the data
            set is there; clamped to 0.50 … 0.99. Elsewhere the limit is half of the available
            memory.

    Raises:
        ValueError: Batch size below 1, an unknown device, or names that do not fit.
        DataError: The data set is empty, malformed, or too large for the device.
        TypeError: ``dataset`` or ``sampler`` is something else.
    """

    def __init__(
        self,
        dataset: object,
        batch_size: int,
        *,
        device: torch.device | str = "cpu",
        seed: int = 42,
        shuffle: bool = True,
        sampler: Sampler | None = None,
        names: Sequence[str] | None = None,
        drop_last: bool = True,
        vram_max_usage: float = 0.90,
    ) -> None:
        self._batch_size = positive_integer("batch_size", batch_size)
        try:
            self._device = torch.device(device)
        except RuntimeError as error:
            raise ValueError(f"device={device!r} is not a device: use 'cpu' or 'cuda'") from error
        source = as_batch_data_set(dataset)
        self._n = len(source)
        if self._n == 0:
            raise DataError(f"the data set ({type(dataset).__name__}) is empty: nothing to load")
        self._sampler = _sampler(sampler, self._n, seed=seed, shuffle=shuffle)
        budget = memory_budget(self._device, vram_max_usage=vram_max_usage)
        self._feed = resident_feed(source, self._device, budget=budget)
        declared = declared_names(dataset) if names is None else names
        self._names = field_names(declared, self._feed.field_count)
        self._drop_last = drop_last
        self._next_epoch = 0
        if self.num_batches == 0:
            warnings.warn(
                f"batch_size={batch_size} is larger than the data set ({self._n} samples) and "
                "drop_last=True leaves out the incomplete batch: there is no batch at all",
                UserWarning,
                stacklevel=2,
            )

    @staticmethod
    def from_dataset(dataset: object) -> LoaderBuilder:
        """Start a builder: ``DataLoader.from_dataset(ds).batch_size(32).build()``."""
        return LoaderBuilder(dataset)

    @staticmethod
    def from_batch_dataset(dataset: object) -> LoaderBuilder:
        """Start a builder over a data set that reads whole batches."""
        return LoaderBuilder(dataset)

    @property
    def num_batches(self) -> int:
        """Batches in a whole epoch."""
        full, rest = divmod(self._n, self._batch_size)
        return full if self._drop_last or rest == 0 else full + 1

    @property
    def batch_size(self) -> int:
        """Samples per full batch."""
        return self._batch_size

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors of a batch."""
        return self._names

    @property
    def device(self) -> torch.device:
        """Where the batches are."""
        return self._device

    def epoch(self, epoch: int, start_batch: int = 0) -> EpochIterator:
        """Iterate over one epoch.

        Args:
            epoch: Number of the epoch; the same number gives the same batches.
            start_batch: First batch to deliver; those before are not loaded.

        Raises:
            ValueError: ``start_batch`` is outside of the epoch.
            DataError: A sampler of the user's gave unusable indices.
        """
        if not 0 <= start_batch <= self.num_batches:
            raise ValueError(
                f"start_batch={start_batch} is outside of an epoch of {self.num_batches} batches"
            )
        order = epoch_order(self._sampler, epoch, self._n)
        rows = torch.split(order, self._batch_size)[start_batch : self.num_batches]
        return EpochIterator(self._feed.batches(rows), len(rows), self._names)

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> EpochIterator:
        """Iterate over the next epoch: 0 at first, one more with each ``for`` loop."""
        epoch = self._next_epoch
        self._next_epoch += 1
        return self.epoch(epoch)


@final
class EpochIterator:
    """The batches of one epoch; ``len()`` is the number of those still to come."""

    __slots__ = ("_names", "_remaining", "_tensors")

    def __init__(
        self, tensors: Iterator[tuple[Tensor, ...]], count: int, names: tuple[str, ...]
    ) -> None:
        self._tensors = tensors
        self._remaining = count
        self._names = names

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Batch:
        tensors = next(self._tensors)
        self._remaining -= 1
        return Batch(tensors, self._names)

    def __len__(self) -> int:
        return self._remaining


@final
class LoaderBuilder:
    """Collects the arguments of :class:`DataLoader` one call at a time."""

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset
        self._batch_size: int | None = None
        self._options: dict[str, object] = {}

    def batch_size(self, batch_size: int) -> LoaderBuilder:
        """Samples per batch; the one setting without a default."""
        self._batch_size = positive_integer("batch_size", batch_size)
        return self

    def device(self, device: torch.device | str) -> LoaderBuilder:
        """Where the batches shall be."""
        return self._set("device", device)

    def seed(self, seed: int) -> LoaderBuilder:
        """Decides the order together with the epoch."""
        return self._set("seed", seed)

    def shuffle(self, shuffle: bool) -> LoaderBuilder:
        """Draw a new order each epoch."""
        return self._set("shuffle", shuffle)

    def sampler(self, sampler: Sampler) -> LoaderBuilder:
        """Decide the order with an object of one's own."""
        return self._set("sampler", sampler)

    def names(self, names: Sequence[str]) -> LoaderBuilder:
        """Name the tensors of a batch."""
        return self._set("names", names)

    def drop_last(self, drop_last: bool) -> LoaderBuilder:
        """Leave out a last batch that is not full."""
        return self._set("drop_last", drop_last)

    def vram_max_usage(self, usage: float) -> LoaderBuilder:
        """Part of a CUDA device's memory that may be in use."""
        return self._set("vram_max_usage", usage)

    def build(self) -> DataLoader:
        """Make the loader.

        Raises:
            ValueError: No batch size was set.
        """
        if self._batch_size is None:
            raise ValueError("a loader needs a batch size: call .batch_size(n) before .build()")
        return DataLoader(self._dataset, self._batch_size, **self._options)  # type: ignore[arg-type]

    def _set(self, option: str, value: object) -> LoaderBuilder:
        self._options[option] = value
        return self


def positive_integer(name: str, value: object) -> int:
    """Check a count.

    Raises:
        ValueError: It is not an integer of at least 1.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r}: it must be an integer of at least 1")
    return value


def _sampler(sampler: Sampler | None, n: int, *, seed: int, shuffle: bool) -> Sampler:
    if sampler is not None:
        if not callable(getattr(sampler, "indices", None)):
            raise TypeError(
                f"sampler={sampler!r} has no indices(epoch) method; derive from flodl.Sampler"
            )
        return sampler
    return RandomSampler(n, seed) if shuffle else SequentialSampler(n)
