"""Batches of data that can only be iterated from front to back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, TypedDict, final

import torch
import torch.utils.data
from torch import Tensor

from flodl.data.adapters import declared_names, is_iterable
from flodl.data.batch import Batch
from flodl.data.form import BatchForm
from flodl.data.samples import Members, stacked
from flodl.data.structure import moved, samples_in
from flodl.data.transfer import transfer_to
from flodl.errors import DataError
from flodl.setting import whole

NOT_PROMISED = "data that can only be iterated cannot be resumed inside an epoch"
"""Text for errors; the tutorial on data loading explains it."""


def remedy_for(dataset: object) -> str:
    """Return what to give a Trainer instead of data that can only be iterated."""
    inner = getattr(dataset, "dataset", None)
    if isinstance(dataset, torch.utils.data.DataLoader) and not is_iterable(inner):
        return "give the Trainer the data set of the loader, .dataset(loader.dataset)"
    return (
        "give samples a number (__len__ and __getitem__, or .npy files read with "
        "flodl.data.MemmapDataSet)"
    )


BatchSize: TypeAlias = int | Callable[[Any], int]
"""Samples per batch, or a function that counts the samples of a batch that a loader has made."""


class _State(TypedDict):
    epoch: int
    batch: int
    batch_size: int | None
    generator: Tensor | None


def gives_batches(dataset: object, batch_size: BatchSize | None) -> bool:
    """Whether data are batches already: those of a torch ``DataLoader``, or counted ones."""
    return isinstance(dataset, torch.utils.data.DataLoader) or callable(batch_size)


def settled_batch_size(dataset: object, batch_size: BatchSize | None) -> int | None:
    """Return the batch size of a training; a ``DataLoader`` of torch decides its own.

    Raises:
        ValueError: ``batch_size`` differs from that of the ``DataLoader``.
    """
    wanted = None if callable(batch_size) else batch_size
    if not isinstance(dataset, torch.utils.data.DataLoader):
        return wanted
    own = _size_of(dataset)
    if wanted is not None and own != wanted:
        told = "makes batches of its own" if own is None else f"has batch_size={own}"
        raise ValueError(
            f"batch_size={wanted}, but the torch DataLoader {told}, which decides: leave "
            ".batch_size(…) out, or give the Trainer the data set of the loader "
            "(.dataset(loader.dataset))"
        )
    return own


def check_epochs(dataset: object, num_epochs: int) -> None:
    """Refuse several epochs of data that can be iterated only once.

    Raises:
        ValueError: ``dataset`` is an iterator, such as a generator.
    """
    if num_epochs > 1 and hasattr(dataset, "__next__"):
        raise ValueError(
            f"the data set is a {type(dataset).__name__}, which can be iterated only once, but "
            f"num_epochs={num_epochs}: pass the function that makes it and not its result, "
            ".dataset(samples) instead of .dataset(samples())"
        )


@final
class IterableLoader:
    """Makes batches of an iterable, or hands over those that a loader has made.

    The order is that of the source; this loader does not shuffle. If the source (or a sampler of
    torch's loader) has ``set_epoch``, it is called with the number of each epoch before the epoch
    begins. The tutorial on data loading says what flodl cannot promise for such data.

    Args:
        dataset: A ``DataLoader`` of torch, or with a function as ``batch_size`` any other iterable
            of batches. These may have any structure: they are brought to the device and handed over
            as the objects that they are. Otherwise samples: an ``IterableDataset`` of torch, a
            streamed data set of the ``datasets`` library, a function without arguments that returns
            an iterator, or another iterable.
        batch_size: Samples per batch. A ``DataLoader`` has its own. Or a function: ``dataset`` then
            yields batches, and the function returns the number of samples of one. Without it, the
            first tensor of a batch tells the number by its dimension 0.
        device: The device for the batches.
        names: Names of the tensors of a batch that is made here. Default: the names that the data
            set declares, the keys of samples that are mappings, else ``"0"``, ``"1"``, ….
        drop_last: Leave out a last batch that is not full. Default: ``True``.
        part: ``(rank, ranks)`` takes every ``ranks``-th batch, beginning with batch ``rank``. So
            each batch belongs to one rank if all of them read the source in the same order.
            A ``DataLoader`` with a ``DistributedSampler`` is taken as it is, because that shares
            the samples already.
        join_remainder: Without ``drop_last``, let a last batch of one sample join the one before
            it. Two samples more than the batch are then read before it is delivered.

    Raises:
        TypeError: ``dataset`` is not such data.
        ValueError: A setting that a ``DataLoader`` decides itself, or a batch size below 1.
    """

    def __init__(
        self,
        dataset: object,
        batch_size: BatchSize | None = None,
        *,
        device: torch.device | str = "cpu",
        names: Sequence[str] | None = None,
        drop_last: bool | None = None,
        join_remainder: bool | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        if not is_iterable(dataset):
            raise TypeError(
                f"{type(dataset).__name__} is not data that can only be iterated; use "
                "flodl.DataLoader"
            )
        self._dataset: Any = dataset
        self._device = torch.device(device)
        self._batch_size = settled_batch_size(dataset, batch_size)
        self._count = batch_size if callable(batch_size) else None
        self._given = gives_batches(dataset, batch_size)
        if self._given:
            for name, value in {
                "names": names, "drop_last": drop_last, "join_remainder": join_remainder
            }.items():  # fmt: skip
                if value is not None:
                    raise ValueError(
                        f"{name}={value}: the {type(dataset).__name__} decides which batches there "
                        "are, and they are handed over unchanged; make them with that setting"
                    )
        else:
            self._batch_size = whole("batch_size", batch_size)
        self._drop_last = True if drop_last is None else drop_last
        self._joins = bool(join_remainder) and not self._drop_last and self._batch_size != 1
        declared = declared_names(dataset) if names is None else names
        self._members = Members(declared)
        self._form = BatchForm(declared, self._members.names)
        self._transfer = transfer_to(self._device)
        self._epoch = IterableEpoch(iter(()), self._samples, "")
        self._number = 0
        self._part = (0, 1) if _is_shared(dataset) else part

    @property
    def source(self) -> object:
        """The source of the batches."""
        return self._dataset

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch if a loader knows them, else ``None``."""
        loader = self._dataset
        inner = getattr(loader, "dataset", None)
        if not self._given or isinstance(inner, torch.utils.data.IterableDataset):
            return None
        try:
            return len(loader)
        except TypeError:  # no length, or that of a sampler without one
            return None

    @property
    def batch_size(self) -> int | None:
        """Samples per full batch; ``None`` if a ``DataLoader`` does not state one size."""
        return self._batch_size

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the tensors of a batch that is made here.

        ``None`` before the first one, if none are declared.
        """
        return self._form.names

    @property
    def device(self) -> torch.device:
        """The device of the batches."""
        return self._device

    def samples_in(self, batches: int) -> int:  # noqa: ARG002 - counted, not computed
        """Samples delivered so far in the latest epoch."""
        return self._epoch.samples

    def epoch(self, epoch: int, start_batch: int = 0) -> IterableEpoch:
        """Iterate over one epoch.

        Args:
            epoch: Number of the epoch, for ``set_epoch``.
            start_batch: Must be 0.

        Raises:
            DataError: ``start_batch`` is not 0.
        """
        if start_batch:
            raise DataError(
                f"start_batch={start_batch} of epoch {epoch}: {NOT_PROMISED}; resume from a "
                f"checkpoint at the end of an epoch, or {remedy_for(self._dataset)}"
            )
        self._number = epoch
        rank, ranks = self._part
        own = islice(self._batches(epoch), rank, None, ranks)
        # With fewer batches than ranks, some have none.
        told = self._told(epoch) if rank == 0 else ""
        self._epoch = IterableEpoch(own, self._samples, told)
        return self._epoch

    def state_dict(self) -> _State:
        """Return the latest epoch, and the state of a ``DataLoader``'s own generator."""
        generator = getattr(self._dataset, "generator", None) if self._given else None
        return {
            "epoch": self._number,
            "batch": self._epoch.batch,
            "batch_size": self._batch_size,
            "generator": None if generator is None else generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the epoch of a saved state."""
        self.close()
        self._epoch = IterableEpoch(iter(()), self._samples, "")
        self._number = int(state["epoch"]) + bool(state["batch"])
        generator = getattr(self._dataset, "generator", None) if self._given else None
        if generator is not None and state["generator"] is not None:
            generator.set_state(state["generator"])

    def close(self) -> None:
        """Close the current epoch."""
        self._epoch.close()

    def __iter__(self) -> IterableEpoch:
        """Iterate over the next epoch."""
        return self.epoch(self._number + 1 if self._epoch.batch else self._number)

    def _told(self, epoch: int) -> str:
        return f"{type(self._dataset).__name__} gave no batch in epoch {epoch} (counted from 0)"

    def _samples(self, batch: Any) -> int:
        """Count the samples of a batch."""
        if self._count is None:
            return samples_in(batch, self._batch_size)
        count = self._count(batch)
        if not isinstance(count, int):
            raise TypeError(
                f"the function given as batch_size returned a {type(count).__name__} for a "
                f"{type(batch).__name__}: return the number of samples in the batch"
            )
        return count

    def _batches(self, epoch: int) -> Iterator[Any]:
        for source in _with_epochs(self._dataset):
            source.set_epoch(epoch)
        source = self._dataset
        if callable(source) and not hasattr(source, "__iter__"):
            source = source()
            if not hasattr(source, "__iter__"):
                raise TypeError(
                    f"the function given as a data set returned a {type(source).__name__}, which "
                    "is not iterable: let it yield samples, or pass the data set itself"
                )
        if self._given:
            for batch in source:
                yield moved(batch, self._device, lambda tensor: self._arrived((tensor,))[0])
            return
        for number, tensors in enumerate(self._made(iter(source))):
            self._form.check(tensors, f"batch {number}")
            yield Batch(self._arrived(tensors), self._form.names or ())

    def _arrived(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return self._transfer.deliver(tensors)

    def _made(self, samples: Iterator[object]) -> Iterator[tuple[Tensor, ...]]:
        size, start = self._batch_size or 1, 0
        held: list[object] = []
        while True:
            # To join a single sample, it must be known before the batch is delivered.
            held += islice(samples, size + (2 if self._joins else 0) - len(held))
            if not held or (self._drop_last and len(held) < size):
                return
            taken = len(held) if self._joins and len(held) == size + 1 else size
            batch, held = held[:taken], held[taken:]
            yield stacked(batch, self._members, partial(_nth, start))
            start += len(batch)


@final
class IterableEpoch:
    """The batches of one epoch; their number is known only at its end.

    Attributes:
        batch: Batches delivered.
        samples: Samples in them.
    """

    def __init__(self, source: Iterator[Any], count: Callable[[Any], int], empty: str) -> None:
        self._source = source
        self._count = count
        self._empty = empty
        self._ahead: deque[Any] = deque()
        self.batch = 0
        self.samples = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.ahead(1):
            if self.batch == 0 and self._empty:
                raise DataError(
                    f"{self._empty}: it is empty, shorter than a batch, or an iterator that was "
                    "used up before; pass a function that makes a new one for each epoch"
                )
            raise StopIteration
        batch = self._ahead.popleft()
        self.batch += 1
        self.samples += self._count(batch)
        return batch

    def ahead(self, most: int) -> int:
        """Read up to ``most`` of the next batches, and return how many there are."""
        self._ahead.extend(islice(self._source, max(0, most - len(self._ahead))))
        return min(most, len(self._ahead))

    def close(self) -> None:
        """Close the epoch."""
        close = getattr(self._source, "close", None)
        if close is not None:
            close()
        self._ahead.clear()


def _is_shared(dataset: object) -> bool:
    """Whether each rank is given its own part of the samples already."""
    sampler = getattr(dataset, "sampler", None)
    return isinstance(sampler, torch.utils.data.DistributedSampler)


def _nth(start: int, place: int) -> str:
    return f"sample {start + place} of the epoch"


def _size_of(loader: Any) -> int | None:
    size = loader.batch_size
    if size is None:
        size = getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None


def _with_epochs(source: Any) -> Iterator[Any]:
    """Yield the parts of a source that have ``set_epoch``, each once."""
    parts = [source]
    if isinstance(source, torch.utils.data.DataLoader):
        batches = source.batch_sampler
        parts = [source.dataset, source.sampler, batches, getattr(batches, "sampler", None)]
    told: list[int] = []
    for part in parts:
        if callable(getattr(part, "set_epoch", None)) and id(part) not in told:
            told.append(id(part))
            yield part
