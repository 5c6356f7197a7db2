"""Batches of a data set, epoch by epoch, in an order that only the seed and the epoch decide."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict, final

import torch
from torch import Tensor

from flodl.data.adapters import as_batch_data_set, declared_names, members_of
from flodl.data.batch import Batch, Position, deliver
from flodl.data.choice import Reading, make_feed
from flodl.data.delivery import Deliveries, EpochCut
from flodl.data.form import BatchForm
from flodl.data.order import EpochOrders
from flodl.data.sampler import Sampler
from flodl.data.seeds import Seeds, seed_value
from flodl.errors import DataError
from flodl.setting import whole


class _Needed(TypedDict):
    """The entries that the state of every loader holds."""

    seed: int
    epoch: int
    batch: int
    n: int
    batch_size: int
    drop_last: bool


class LoaderState(_Needed, total=False):
    """The state from which a loader continues; plain values that JSON can hold."""

    join_remainder: bool
    sampler: str
    """The kind of order, or the class of a sampler that was given."""
    order: str
    """Digest of the order; only inside an epoch."""


@final
class DataLoader(Deliveries):
    """Iterates over a data set in batches.

    Tensors, arrays and memory maps stay on the device in their own dtype if they fit (*resident*);
    a batch gathers rows there. If they do not fit, a thread reads the next batches while a step
    runs.

    Any other data set is read as torch's loader reads it:

    - Each sample is read once per epoch. Nothing is read before the first batch, and nothing is
      kept.
    - It is read when its batch is asked for, by the thread that asks. While neither the data set
      nor the training draws random numbers on the CPU, two batches are read ahead on a thread, if
      that saves time. If reading fails there, the thread that asks reads the batch again.
    - A random transform draws new numbers in each epoch. It draws from the generators of the
      program, between the draws of the training.

    ``prefetch``, ``workers`` and ``cache`` change this.

    Args:
        dataset: A :class:`~flodl.data.dataset.DataSet` or a
            :class:`~flodl.data.dataset.BatchDataSet`. A tuple or a dictionary of equally long
            tensors or arrays. Any map-style data set of torch. A ``Dataset`` of the ``datasets``
            library. A NumPy array.
        batch_size: Samples per batch, at least 1.
        device: The device for the batches.
        seed: Decides the order together with the epoch.
        shuffle: Draw a new order each epoch; otherwise first to last.
        sampler: Decides the order instead of ``seed`` and ``shuffle``.
        names: Names of the tensors of a batch. Default: the names that the data set declares (its
            ``names``, its columns, or the keys of samples that are mappings), else ``"0"``,
            ``"1"``, ….
        drop_last: Leave out a last batch that is not full.
        join_remainder: Without ``drop_last``, let a last batch of one sample join the one before
            it, because batch normalisation cannot train on a single sample.
        streaming: ``True`` reads in each epoch, ahead on a thread unless ``prefetch`` or
            ``workers`` say otherwise. ``False`` reads all samples when the loader is made and keeps
            them on the device, or fails. ``None`` decides as described above.
        prefetch: Batches read ahead on a thread; 0 reads each when it is asked for. If it reads
            ahead, random transforms draw from the program's generators at moments that differ from
            run to run. Default: as described above. For tensors, arrays and memory maps, and with
            ``streaming`` or ``workers``, the default is two on the CPU, and on other devices as
            many as their memory allows. Tensors are gathered on the CPU when they are asked for.
        workers: Processes that read ahead, for a ``get`` that keeps a processor busy. Each holds a
            copy of the data set. Random transforms in them are seeded per batch and repeat exactly,
            also after a resume.
        cache: Keep samples in memory once they are read, so that later epochs do not read them
            again. Samples that do not fit are read in each epoch. Random transforms in the data set
            then act once per sample: they draw from a seed of the sample, which is the same in all
            epochs, in all processes and after a resume. A generator that the data set keeps itself
            has no such seed. ``True`` uses up to half of the available memory; a number is a limit
            in bytes. Processes that a launcher started on this host share the limit. With several
            ranks, each rank keeps only the samples it has read itself. Tensors and arrays are in
            memory anyway.
        vram_max_usage: On a CUDA device, the part of its memory that may be in use with the data
            set; clamped to 0.50 … 0.99. On other devices the limit is half of the available memory.

    Raises:
        ValueError: The batch size is below 1, the device is unknown, the names do not fit, or
            settings contradict each other.
        DataError: The data set is empty, or too large for the device with ``streaming=False``.
            Malformed samples are found when they are read.
        TypeError: ``dataset`` or ``sampler`` has another type.
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
        cache: bool | int = False,
        vram_max_usage: float = 0.90,
    ) -> None:
        self._batch_size = whole("batch_size", batch_size)
        reading = Reading(
            streaming=streaming,
            prefetch=prefetch,
            workers=workers,
            cache=cache,
            vram_max_usage=vram_max_usage,
        )
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
        self._orders = self._new_orders()
        self._cut = EpochCut(self._n, self._batch_size, drop_last, join_remainder)
        if declared is None:
            declared = declared_names(source)
        self._form = BatchForm(declared, members_of(source).names)
        self._feed, self._reader = make_feed(
            source,
            self._form,
            self._device,
            batch_size=self._batch_size,
            num_batches=self.num_batches,
            reading=reading,
        )
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
    def seed(self) -> int:
        """The seed that decides the order together with the epoch."""
        return self._seed

    @property
    def order_kind(self) -> Literal["random", "sequential", "custom"]:
        """How the order of an epoch is made; ``custom`` if a sampler was given."""
        return self._orders.kind

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the tensors of a batch.

        ``None`` before the first batch is read, if neither the caller nor the data set names them.
        """
        return self._form.names

    @property
    def device(self) -> torch.device:
        """The device of the batches."""
        return self._device

    @property
    def is_resident(self) -> bool:
        """Whether the whole data set is on the device."""
        return self._feed.is_resident

    @property
    def resident(self) -> tuple[Tensor, ...]:
        """The whole data set, each ``[samples, …]`` on the device; empty if it is not resident.

        Do not write to it.
        """
        return self._feed.resident

    def prefetch_depth(self) -> int:
        """Number of batches loaded ahead of the consumer; 0 if the data set is resident."""
        return self._feed.prefetch_depth()

    def set_prefetch_depth(self, depth: int) -> None:
        """Set how many batches are loaded ahead from now on; no effect if resident.

        Args:
            depth: Batches; 0 loads each when it is asked for, from the next epoch on.

        Raises:
            ValueError: ``depth`` is below 0, or 0 with worker processes.
        """
        whole("depth", depth, 0)
        if self._reader is not None:
            self._reader.set_prefetch_depth(depth)

    @property
    def cached_samples(self) -> int:
        """Samples that the cache holds; 0 without ``cache``."""
        return self._feed.cached()

    def drop_cached(self, keep: int) -> None:
        """Drop the samples that were cached last, so that their transforms draw again.

        Args:
            keep: Samples to keep, the value of :attr:`cached_samples` at an earlier moment.
        """
        self._feed.drop_cached(keep)

    def epoch(self, epoch: int, start_batch: int = 0) -> EpochIterator:
        """Iterate over one epoch.

        Args:
            epoch: Number of the epoch; the same number gives the same batches.
            start_batch: First batch to deliver; earlier batches are not loaded. Without it, the
                first call for an epoch that :meth:`load_state_dict` restored continues at the saved
                batch.

        Raises:
            ValueError: ``start_batch`` is outside of the epoch.
            DataError: A user's sampler returned invalid indices.
        """
        if not 0 <= start_batch <= self.num_batches:
            raise ValueError(
                f"start_batch={start_batch} is outside of an epoch of {self.num_batches} batches"
            )
        continues = self._loaded is not None and self._loaded.epoch == epoch
        if self._loaded is not None and continues:
            start_batch = start_batch or self._loaded.batch
            self._loaded = None
        order = self._orders.of(epoch, again=not continues)
        batches = self._feed.batches(
            order[self._cut.slice_of(start_batch, self.num_batches)],
            self._batch_size,
            seeds=Seeds.of(self._seed, epoch, range(start_batch, self.num_batches)),
            join_remainder=self._cut.joins,
        )
        self._position = Position(epoch, start_batch)
        self._next_epoch = epoch + 1
        return EpochIterator(batches, self._form, self._position, self.num_batches, order)

    def samples_in(self, batches: int) -> int:
        """Return the number of samples in the first ``batches`` batches of an epoch."""
        if self._cut.join_remainder and batches == self.num_batches:
            return self._cut.delivered  # the last one may be larger
        return min(batches * self._batch_size, self._n)

    def state_dict(self) -> LoaderState:
        """Return the position of the consumer: the latest epoch, and its delivered batches."""
        return self.state_at(self._position.epoch, self._position.batch)

    def state_at(self, epoch: int, batch: int) -> LoaderState:
        """Return the state of a consumer that has trained ``batch`` batches of an epoch."""
        state: LoaderState = {
            "seed": self._seed,
            "epoch": epoch,
            "batch": batch,
            "n": self._n,
            "batch_size": self._batch_size,
            "drop_last": self._cut.drop_last,
            "sampler": self._orders.name,
        }
        # Only if it is set, so that states from before this setting existed stay valid.
        if self._cut.join_remainder:
            state["join_remainder"] = True
        if 0 < batch < self.num_batches:
            state["order"] = self._orders.digest(epoch)
        return state

    def other_order(self, state: Mapping[str, Any]) -> str | None:
        """Return how the order of this loader differs from that of a state inside an epoch.

        None if it is the same, or if the state is at the end of an epoch.
        """
        return self._orders.other_than(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, with ``epoch(saved epoch)`` or with the next ``for``.

        The saved seed replaces the seed of this loader. A sampler of your own must return the same
        orders. Inside an epoch, a digest of the order is compared.

        Raises:
            DataError: The state is incomplete, or belongs to another data set, batch size,
                ``drop_last`` or ``join_remainder``, or to another order inside an epoch.
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
                    "start the epoch again without the state"
                )
        if not (state["epoch"] >= 0 and 0 <= state["batch"] <= self.num_batches):
            raise DataError(
                f"the state says batch {state['batch']} of epoch {state['epoch']}; an epoch has "
                f"{self.num_batches} batches"
            )
        former = self._seed
        self._use_seed(seed_value(state["seed"]))
        if problem := self.other_order(state):
            self._use_seed(former)
            raise DataError(
                f"{problem}; make the loader as it was, or start the epoch again without the state"
            )
        self._position = Position(state["epoch"], state["batch"])
        self._loaded = Position(state["epoch"], state["batch"])
        finished = state["batch"] == self.num_batches
        self._next_epoch = state["epoch"] + 1 if finished else state["epoch"]

    def close(self) -> None:
        """End the thread and the processes of a loader that streams.

        An epoch in progress fails with ``StateError``; a later one starts them again. Dropping the
        last reference to the loader and its iterators does the same.
        """
        self._feed.close()

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> EpochIterator:
        """Iterate over the next epoch: first 0, then the one after the latest."""
        return self.epoch(self._next_epoch)

    def _use_seed(self, seed: int) -> None:
        if seed != self._seed:
            self._seed = seed
            self._orders = self._new_orders()

    def _new_orders(self) -> EpochOrders:
        return EpochOrders(self._given_sampler, self._n, seed=self._seed, shuffle=self._shuffle)


@final
class EpochIterator:
    """The batches of one epoch; ``len()`` is the number of the remaining ones.

    ``for`` runs directly over the batches and not through this object. So you may mix ``for``,
    ``next()`` and ``len()``.

    Attributes:
        order: Sample numbers of the whole epoch, int64 on the CPU; do not write to it.
    """

    __slots__ = ("_batches", "_position", "_total", "order")

    def __init__(
        self,
        tensors: Iterator[tuple[Tensor, ...]],
        form: BatchForm,
        position: Position,
        total: int,
        order: Tensor,
    ) -> None:
        self._batches = deliver(tensors, form, position)
        self.order = order
        self._position = position
        self._total = total

    def __iter__(self) -> Iterator[Batch]:
        return self._batches

    def __next__(self) -> Batch:
        return next(self._batches)

    def __len__(self) -> int:
        return self._total - self._position.batch

    def ahead(self, most: int) -> int:
        """Return how many of the next ``most`` batches exist; reads none."""
        return min(most, len(self))

    def close(self) -> None:
        """Cancel the remaining batches."""
        self._batches.close()
