"""Batches of a data set, epoch by epoch, in an order that only the seed and the epoch decide."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, TypedDict, final

import torch

from flodl.data.adapters import as_batch_data_set, declared_names, keys_of
from flodl.data.batch import Batch, Position, deliver
from flodl.data.budget import Memory, memory_of
from flodl.data.counts import count, seed_value
from flodl.data.counts import positive_integer as positive_integer
from flodl.data.dataset import field_names
from flodl.data.delivery import Deliveries, EpochCut, batch_seed
from flodl.data.feed import Feed, read_rows, resident_bytes, resident_feed
from flodl.data.loader_builder import LoaderBuilder as LoaderBuilder
from flodl.data.sampler import RandomSampler, Sampler, SequentialSampler, epoch_order
from flodl.data.streaming import StreamingFeed
from flodl.errors import DataError
from flodl.log import verbose

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from flodl.data.dataset import BatchDataSet


class _Needed(TypedDict):
    """What the state of every loader holds."""

    seed: int
    epoch: int
    batch: int
    n: int
    batch_size: int
    drop_last: bool


class LoaderState(_Needed, total=False):
    """What a loader needs to go on where it was; plain numbers, fit for JSON."""

    join_remainder: bool


@final
class DataLoader:
    """Iterates over a data set in batches.

    A data set that fits is read once, when the loader is made, and kept on the device in its own
    dtype (*resident*); a batch gathers rows there. A random transform inside the data set then
    acts once per sample and not once per epoch: put augmentation into the training step, or
    stream. A data set that does not fit is *streamed*: a thread, or worker processes, read batches
    ahead and copy them to the device while the step before runs.

    Args:
        dataset: A :class:`~flodl.data.dataset.DataSet`, a
            :class:`~flodl.data.dataset.BatchDataSet`, any map-style data set of torch, a
            ``Dataset`` of the ``datasets`` library, or a NumPy array.
        batch_size: Samples per batch, at least 1.
        device: Where the batches shall be.
        seed: Decides the order together with the epoch.
        shuffle: Draw a new order each epoch; otherwise first to last.
        sampler: Decides the order instead of ``seed`` and ``shuffle``.
        names: Names of the tensors of a batch. Default: those the data set declares (its
            ``names``, its columns, or the keys of samples that are mappings), else ``"0"``,
            ``"1"``, ….
        drop_last: Leave out a last batch that is not full.
        join_remainder: Where nothing is dropped, let a last batch of one sample join the one
            before it: batch normalisation cannot train on a single sample.
        streaming: ``True`` streams, ``False`` keeps the data set on the device or fails,
            ``None`` decides by its size. Asking for workers means streaming.
        prefetch: Batches loaded ahead when streaming; 0 loads each when it is asked for. Default:
            two on the CPU, otherwise what the device's memory allows.
        workers: Processes that read when streaming, for a ``get`` that keeps a processor busy;
            0 reads on a thread. Each holds a copy of the data set. Random transforms in them are
            seeded per batch and repeat exactly, also after a resume.
        vram_max_usage: On a CUDA device, the part of its memory that may be in use once the data
            set is there; clamped to 0.50 … 0.99. Elsewhere the limit is half of the available
            memory.

    Raises:
        ValueError: Batch size below 1, an unknown device, names that do not fit, or settings that
            contradict each other.
        DataError: The data set is empty, malformed, or too large for the device though
            ``streaming=False``.
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
        join_remainder: bool = False,
        streaming: bool | None = None,
        prefetch: int | None = None,
        workers: int = 0,
        vram_max_usage: float = 0.90,
    ) -> None:
        self._batch_size = positive_integer("batch_size", batch_size)
        streaming = _checked_streaming(streaming, prefetch, workers)
        try:
            self._device = torch.device(device)
        except RuntimeError as error:
            raise ValueError(f"device={device!r} is not a device: use 'cpu' or 'cuda'") from error
        declared = declared_names(dataset) if names is None else names
        source = as_batch_data_set(dataset, declared)
        self._n = len(source)
        if self._n == 0:
            raise DataError(f"the data set ({type(dataset).__name__}) is empty: nothing to load")
        self._seed = seed_value(seed)
        self._shuffle = shuffle
        self._given_sampler = sampler
        self._sampler = _sampler(sampler, self._n, seed=self._seed, shuffle=shuffle)
        self._cut = EpochCut(self._n, self._batch_size, drop_last, join_remainder)
        sample = read_rows(source, range(1))
        self._names = field_names(keys_of(source) if declared is None else declared, len(sample))
        memory = memory_of(self._device, vram_max_usage=vram_max_usage)
        resident = (
            None if streaming else self._resident(source, sample, memory, needed=streaming is False)
        )
        self._feed: Feed = resident or StreamingFeed(
            source,
            self._device,
            sample,
            memory=memory,
            batch_size=self._batch_size,
            num_batches=self.num_batches,
            prefetch=prefetch,
            workers=workers,
        )
        self._deliveries = self._new_deliveries()
        self._position = Position(0, 0)
        self._loaded: Position | None = None
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
        return LoaderBuilder(dataset, DataLoader)

    @staticmethod
    def from_batch_dataset(dataset: object) -> LoaderBuilder:
        """Start a builder over a data set that reads whole batches."""
        return LoaderBuilder(dataset, DataLoader)

    @property
    def num_batches(self) -> int:
        """Batches in a whole epoch."""
        return self._cut.num_batches

    @property
    def num_samples(self) -> int:
        """Samples of the data set."""
        return self._n

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

    @property
    def is_resident(self) -> bool:
        """Whether the whole data set lives on the device."""
        return not isinstance(self._feed, StreamingFeed)

    def prefetch_depth(self) -> int:
        """Batches loaded ahead of the consumer; 0 when the data set is resident."""
        return self._feed.prefetch_depth()

    def set_prefetch_depth(self, depth: int) -> None:
        """Decide how many batches are loaded ahead, from now on; nothing if resident.

        Args:
            depth: Batches; 0 loads each when it is asked for, beginning with the next epoch.

        Raises:
            ValueError: ``depth`` is below 0, or 0 with worker processes.
        """
        count("depth", depth)
        if isinstance(self._feed, StreamingFeed):
            self._feed.set_prefetch_depth(depth)

    def auto_resize(self) -> int:
        """Decide the depth from the memory as it is now, and again at each epoch.

        Returns:
            The new depth; 0 when the data set is resident.
        """
        return self._feed.auto_resize() if isinstance(self._feed, StreamingFeed) else 0

    def epoch(self, epoch: int, start_batch: int = 0) -> EpochIterator:
        """Iterate over one epoch.

        Args:
            epoch: Number of the epoch; the same number gives the same batches.
            start_batch: First batch to deliver; those before are not loaded. Without it, the first
                call for an epoch that :meth:`load_state_dict` restored goes on where it was saved.

        Raises:
            ValueError: ``start_batch`` is outside of the epoch.
            DataError: A sampler of the user's gave unusable indices.
        """
        if not 0 <= start_batch <= self.num_batches:
            raise ValueError(
                f"start_batch={start_batch} is outside of an epoch of {self.num_batches} batches"
            )
        if self._loaded is not None and self._loaded.epoch == epoch:
            start_batch = start_batch or self._loaded.batch
            self._loaded = None
        order = epoch_order(self._sampler, epoch, self._n)
        batches = self._feed.batches(
            order[self._cut.slice_of(start_batch, self.num_batches)],
            self._batch_size,
            seed=batch_seed(self._seed, epoch, start_batch),
            join_remainder=self._cut.joins,
        )
        self._position = Position(epoch, start_batch)
        self._next_epoch = epoch + 1
        return EpochIterator(batches, self._names, self._position, self.num_batches)

    def rows(self, epoch: int, number: int) -> Tensor:
        """Return which samples are in one batch of an epoch.

        Returns:
            ``[samples]`` int64 on the CPU, in the order of the batch; not to be written to.

        Raises:
            ValueError: The epoch has no batch of that number.
            DataError: A sampler of the user's gave unusable indices.
        """
        return self._deliveries.rows(epoch, number)

    def deliver(self, epoch: int, start: int, stop: int) -> Iterator[tuple[Tensor, Batch]]:
        """Iterate over a part of an epoch, with the sample numbers of each batch.

        For consumers that share an epoch: the batches are those that :meth:`epoch` delivers, parts
        may be asked for in any order, and the position in :meth:`state_dict` stays where it is.
        Nothing behind the part is loaded; closing the iterator cancels the rest of it.

        Args:
            epoch: Number of the epoch.
            start: First batch.
            stop: Batch behind the last.

        Returns:
            Sample numbers as :meth:`rows` gives them, and the batch.

        Raises:
            ValueError: The batches are not all in the epoch.
            DataError: A sampler of the user's gave unusable indices.
        """
        return self._deliveries.batches(epoch, start, stop)

    def deliver_some(self, epoch: int, numbers: Sequence[int]) -> Iterator[tuple[Tensor, Batch]]:
        """Iterate over batches of an epoch that need not follow each other.

        As :meth:`deliver`, but for random transforms of worker processes, which draw for each
        batch what they would draw for others.

        Args:
            epoch: Number of the epoch.
            numbers: Of the batches, ascending; at least one.

        Raises:
            ValueError: The numbers do not ascend or are not all in the epoch.
            DataError: A sampler of the user's gave unusable indices.
        """
        return self._deliveries.numbered(epoch, numbers)

    def deliver_samples(self, epoch: int, start: int, stop: int) -> Batch:
        """Return samples of an epoch as one batch, wherever its own batches end.

        Args:
            epoch: Number of the epoch.
            start: Place of the first sample in the order of the epoch.
            stop: Place behind the last.

        Raises:
            ValueError: There is no such sample, or the batches of the epoch leave one out.
            DataError: A sampler of the user's gave unusable indices.
        """
        return self._deliveries.samples(epoch, start, stop)

    def state_dict(self) -> LoaderState:
        """Where the consumer is: in the epoch begun last, behind the batch delivered last."""
        state: LoaderState = {
            "seed": self._seed,
            "epoch": self._position.epoch,
            "batch": self._position.batch,
            "n": self._n,
            "batch_size": self._batch_size,
            "drop_last": self._cut.drop_last,
        }
        # Only where it says something: states from before there was a choice stay valid.
        if self._cut.join_remainder:
            state["join_remainder"] = True
        return state

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where a state was saved: with ``epoch(saved epoch)``, or with the next ``for``.

        The seed is the saved one from now on. A sampler of one's own has to give the same orders.

        Raises:
            DataError: The state is incomplete or belongs to another data set, batch size or
                ``drop_last`` or ``join_remainder``.
        """
        missing = [key for key in _Needed.__annotations__ if key not in state]
        if missing:
            raise DataError(f"the state of a loader lacks {', '.join(missing)}; save it again")
        mine = self.state_dict()
        for key in ("n", "batch_size", "drop_last", "join_remainder"):
            saved, own = state.get(key, False), mine.get(key, False)
            if saved != own:
                raise DataError(
                    f"the state was saved with {key}={saved!r} and this loader has "
                    f"{key}={own!r}: its batches are others; make the loader as it was, or "
                    "start the epoch anew without the state"
                )
        if not (state["epoch"] >= 0 and 0 <= state["batch"] <= self.num_batches):
            raise DataError(
                f"the state says batch {state['batch']} of epoch {state['epoch']}; an epoch has "
                f"{self.num_batches} batches"
            )
        self._seed = seed_value(state["seed"])
        self._sampler = _sampler(
            self._given_sampler, self._n, seed=self._seed, shuffle=self._shuffle
        )
        self._deliveries = self._new_deliveries()
        self._position = Position(state["epoch"], state["batch"])
        self._loaded = Position(state["epoch"], state["batch"])
        finished = state["batch"] == self.num_batches
        self._next_epoch = state["epoch"] + 1 if finished else state["epoch"]

    def close(self) -> None:
        """End the thread and the processes of a loader that streams.

        An epoch under way fails with ``StateError``; a later one starts them again. Dropping the
        last reference to the loader and its iterators does the same.
        """
        self._feed.close()

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> EpochIterator:
        """Iterate over the next epoch: 0 at first, then the one behind that begun last."""
        return self.epoch(self._next_epoch)

    def _new_deliveries(self) -> Deliveries:
        return Deliveries(self._feed, self._names, self._cut, self._sampler, self._seed)

    def _resident(
        self, source: BatchDataSet, sample: Sequence[Tensor], memory: Memory, *, needed: bool
    ) -> Feed | None:
        """Load the data set onto the device, or return ``None`` where it does not fit."""
        size = resident_bytes(source, self._device, sample)
        if size == 0 or memory.holds(size):
            try:
                return resident_feed(source, self._device, sample)
            except (torch.OutOfMemoryError, MemoryError):
                if needed:
                    raise
            # Outside of the handler: the exception's frames hold what was loaded so far.
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
        elif needed:
            raise _too_large(size, memory.budget(), self._n, self._device)
        verbose(
            "the data set needs {} on {} and does not fit there: streaming it",
            _mebibytes(size),
            self._device,
        )
        return None


@final
class EpochIterator:
    """The batches of one epoch; ``len()`` is the number of those still to come.

    ``for`` runs over the batches without a detour through this object; so it is the same to mix
    ``for``, ``next()`` and ``len()``.
    """

    __slots__ = ("_batches", "_position", "_total")

    def __init__(
        self,
        tensors: Iterator[tuple[Tensor, ...]],
        names: tuple[str, ...],
        position: Position,
        total: int,
    ) -> None:
        self._batches = deliver(tensors, names, position)
        self._position = position
        self._total = total

    def __iter__(self) -> Iterator[Batch]:
        return self._batches

    def __next__(self) -> Batch:
        return next(self._batches)

    def __len__(self) -> int:
        return self._total - self._position.batch

    def close(self) -> None:
        """Cancel what is still to come."""
        self._batches.close()


def _checked_streaming(streaming: bool | None, prefetch: int | None, workers: int) -> bool | None:
    """Check the settings of streaming against each other; workers mean that it is wanted."""
    if prefetch is not None:
        count("prefetch", prefetch)
    if count("workers", workers) == 0:
        return streaming
    if streaming is False:
        raise ValueError(
            f"workers={workers} read while training goes on, and streaming=False reads everything "
            "before; leave out one of them"
        )
    if prefetch == 0:
        raise ValueError(
            f"workers={workers} read ahead, and prefetch=0 forbids that; leave out one of them"
        )
    return True


def _sampler(sampler: Sampler | None, n: int, *, seed: int, shuffle: bool) -> Sampler:
    if sampler is not None:
        if not callable(getattr(sampler, "indices", None)):
            raise TypeError(
                f"sampler={sampler!r} has no indices(epoch) method; derive from flodl.Sampler"
            )
        return sampler
    return RandomSampler(n, seed) if shuffle else SequentialSampler(n)


def _too_large(needed: int, budget: int, n: int, device: torch.device) -> DataError:
    limit = "the allowance" if device.type == "cuda" else "half of the available memory"
    return DataError(
        f"the data set needs {_mebibytes(needed)} on {device} ({n:,} samples) and {limit} is "
        f"{_mebibytes(budget)}; stream it (leave out streaming=False), free some memory, use "
        "fewer samples, or store them in a smaller dtype"
    )


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
