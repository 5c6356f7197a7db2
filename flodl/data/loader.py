"""Batches of a data set, epoch by epoch, in an order that only the seed and the epoch decide."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, TypedDict, final

import torch

from flodl.data.adapters import as_batch_data_set, declared_names, members_of
from flodl.data.batch import Batch, Position, deliver
from flodl.data.choice import Reading, make_feed
from flodl.data.counts import count, seed_value
from flodl.data.counts import positive_integer as positive_integer
from flodl.data.delivery import Deliveries, EpochCut, batch_seed
from flodl.data.form import BatchForm
from flodl.data.loader_builder import LoaderBuilder as LoaderBuilder
from flodl.data.sampler import RandomSampler, Sampler, SequentialSampler, epoch_order
from flodl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor


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

    Tensors, arrays and memory maps that fit are kept on the device in their own dtype
    (*resident*); a batch gathers rows there. Larger ones are read ahead by a thread while the step
    before runs.

    Any other data set is read as the loader of torch reads it: each sample once in each epoch,
    when its batch is asked for, by the thread that asks. Nothing is read before the first batch
    and nothing is kept. A random transform draws anew in each epoch, from the generators of the
    program, between the draws of the training. ``prefetch``, ``workers`` and ``cache`` ask for
    something else.

    Args:
        dataset: A :class:`~flodl.data.dataset.DataSet`, a
            :class:`~flodl.data.dataset.BatchDataSet`, a tuple or a dictionary of equally long
            tensors or arrays, any map-style data set of torch, a ``Dataset`` of the ``datasets``
            library, or a NumPy array.
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
        streaming: ``True`` reads in each epoch, ahead on a thread unless ``prefetch`` or
            ``workers`` say otherwise. ``False`` reads all samples when the loader is made and
            keeps them on the device, or fails. ``None`` decides as told above.
        prefetch: Batches read ahead on a thread; 0 reads each when it is asked for. Random
            transforms then draw from the program's generators at moments that no run repeats.
            Default: 0; for tensors, arrays and memory maps, and with ``streaming`` or ``workers``,
            two on the CPU and otherwise what the device's memory allows.
        workers: Processes that read ahead, for a ``get`` that keeps a processor busy. Each holds
            a copy of the data set. Random transforms in them are seeded per batch and repeat
            exactly, also after a resume.
        cache: Keep samples in memory as they are read, so that later epochs do not read them
            again; what does not fit is read in each epoch. Random transforms in the data set then
            act once per sample. ``True`` takes up to half of the available memory, a number up to
            so many bytes; processes that a launcher started on this host share it. In several
            ranks, each keeps what it has read itself. Tensors and arrays are in memory anyway.
        vram_max_usage: On a CUDA device, the part of its memory that may be in use once the data
            set is there; clamped to 0.50 … 0.99. Elsewhere the limit is half of the available
            memory.

    Raises:
        ValueError: Batch size below 1, an unknown device, names that do not fit, or settings that
            contradict each other.
        DataError: The data set is empty, or too large for the device though
            ``streaming=False``. Malformed samples are found when they are read.
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
        cache: bool | int = False,
        vram_max_usage: float = 0.90,
    ) -> None:
        self._batch_size = positive_integer("batch_size", batch_size)
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
        self._sampler = _sampler(sampler, self._n, seed=self._seed, shuffle=shuffle)
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
    def names(self) -> tuple[str, ...] | None:
        """Names of the tensors of a batch.

        ``None`` before the first batch is read, if neither the caller nor the data set names them.
        """
        return self._form.names

    @property
    def device(self) -> torch.device:
        """Where the batches are."""
        return self._device

    @property
    def is_resident(self) -> bool:
        """Whether the whole data set lives on the device."""
        return self._feed.is_resident

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
        if self._reader is not None:
            self._reader.set_prefetch_depth(depth)

    def auto_resize(self) -> int:
        """Decide the depth from the memory as it is now, and again at each epoch.

        Returns:
            The new depth; 0 when the data set is resident.
        """
        return self._reader.auto_resize() if self._reader is not None else 0

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
        return EpochIterator(batches, self._form, self._position, self.num_batches)

    def samples_in(self, batches: int) -> int:
        """Samples in the first so many batches of an epoch."""
        return min(batches * self._batch_size, self._n)

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
        return Deliveries(self._feed, self._form, self._cut, self._sampler, self._seed)


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
        form: BatchForm,
        position: Position,
        total: int,
    ) -> None:
        self._batches = deliver(tensors, form, position)
        self._position = position
        self._total = total

    def __iter__(self) -> Iterator[Batch]:
        return self._batches

    def __next__(self) -> Batch:
        return next(self._batches)

    def __len__(self) -> int:
        return self._total - self._position.batch

    def ahead(self, most: int) -> int:
        """Tell how many of the next ``most`` batches there are; reads none."""
        return min(most, len(self))

    def close(self) -> None:
        """Cancel what is still to come."""
        self._batches.close()


def _sampler(sampler: Sampler | None, n: int, *, seed: int, shuffle: bool) -> Sampler:
    if sampler is not None:
        if not callable(getattr(sampler, "indices", None)):
            raise TypeError(
                f"sampler={sampler!r} has no indices(epoch) method; derive from flodl.Sampler"
            )
        return sampler
    return RandomSampler(n, seed) if shuffle else SequentialSampler(n)
