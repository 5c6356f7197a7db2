"""The streaming feed: reads each batch in each epoch and does not keep the data set."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from typing import final

import torch
from torch import Tensor

from flodl.data.adapters import stays_in_memory
from flodl.data.budget import CPU_DEPTH, Memory
from flodl.data.dataset import BatchDataSet, TensorDataSet
from flodl.data.draws import SampleReader, kept_generators
from flodl.data.feed import Feed, described, read_rows, rows_of
from flodl.data.form import BatchForm
from flodl.data.prefetch import Prefetcher
from flodl.data.processes import WorkerProcesses
from flodl.data.quiet import QuietReader
from flodl.data.seeds import NO_SEEDS, Seeds
from flodl.data.transfer import Group, Transfer, transfer_to


@final
class _Depth:
    """Number of batches that may be ready; shared with the thread that loads."""

    __slots__ = ("by_user", "value")

    def __init__(self, by_user: int | None) -> None:
        self.by_user = by_user
        self.value = CPU_DEPTH if by_user is None else by_user

    def __call__(self) -> int:
        return self.value


@final
class StreamingFeed(Feed):
    """Reads batches when they are asked for, or ahead on one thread or in processes.

    Args:
        source: The data set; it has at least one sample.
        device: The device for the batches.
        form: The properties that all batches share; learned from the first.
        memory: The device's memory; decides the depth unless the user does.
        batch_size: Samples per batch.
        num_batches: Batches of a whole epoch.
        prefetch: Batches loaded ahead; 0 loads each when it is asked for; ``None`` lets the memory
            decide.
        workers: Processes that read instead of the thread, 0 for none.
        quiet: Whether to read ahead only while nobody can notice it; with ``prefetch=0``.
    """

    def __init__(
        self,
        source: BatchDataSet,
        device: torch.device,
        form: BatchForm,
        *,
        memory: Memory,
        batch_size: int,
        num_batches: int,
        prefetch: int | None = None,
        workers: int = 0,
        quiet: bool = False,
    ) -> None:
        self._source = source
        self._samples = SampleReader(source)
        self._form = form
        self._memory = memory
        self._depth = _Depth(prefetch)
        self._transfer = transfer_to(device)
        self._workers = workers
        self._processes: WorkerProcesses | None = None
        self._prefetcher: Prefetcher | None = None
        self._batch_size = batch_size
        self._num_batches = num_batches
        self._epochs = 0
        self._owner = os.getpid()
        read = partial(_read, source, form)
        self._quiet = QuietReader(read, self._transfer.deliver, device) if quiet else None

    def prefetch_depth(self) -> int:
        """Number of batches loaded ahead of the consumer."""
        return self._depth.value if self._quiet is None else self._quiet.depth

    def set_prefetch_depth(self, depth: int) -> None:
        """Set the depth, for epochs in progress as well.

        Raises:
            ValueError: ``depth`` is 0, and there are processes that read ahead.
        """
        if depth == 0 and self._workers:
            raise ValueError(
                f"a prefetch depth of 0 leaves the {self._workers} worker processes nothing to do "
                "ahead; use at least 1, or make the loader with workers=0"
            )
        self._leave_parent()
        self._quiet = None
        self._depth.by_user = self._depth.value = depth
        if self._prefetcher is not None:
            self._prefetcher.wake()

    def batches(
        self,
        order: Tensor,
        batch_size: int,
        *,
        seeds: Seeds = NO_SEEDS,
        join_remainder: bool = False,
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches in order; closing the iterator cancels the unfetched ones."""
        if len(order):
            rows = partial(rows_of, order, batch_size, join_remainder=join_remainder)
            yield from self.read(rows, seeds)

    def read(
        self, rows: Callable[[], Iterator[Tensor]], seeds: Seeds, *, each_sample: bool = False
    ) -> Generator[tuple[Tensor, ...]]:
        """Yield a batch for each list of rows; closing the iterator cancels the unfetched ones.

        Args:
            rows: Returns the lists; each call starts again at the first.
            seeds: As for :meth:`batches`.
            each_sample: Whether random transforms draw from a seed of each sample. This has no
                effect on a thread, because it shares the generators with the training.
        """
        if self._depth.by_user is None:
            self._measure()
        self._epochs += 1
        if self._quiet is not None:
            yield from self._quiet.batches(rows, self._thread)
        elif self._depth.value == 0:
            own = seeds.training if each_sample and not stays_in_memory(self._source) else None
            yield from self._synchronous(rows(), own)
        else:
            yield from self._ahead(rows, seeds, each_sample)

    def close(self) -> None:
        """End the thread and the processes."""
        self._leave_parent()
        prefetcher, self._prefetcher = self._prefetcher, None
        self._processes = None
        if prefetcher is not None:
            prefetcher.close()

    def _leave_parent(self) -> None:
        """In a forked process, leave the thread and the processes to the parent."""
        if os.getpid() != self._owner:
            self._owner = os.getpid()
            self._prefetcher = self._processes = None

    def _measure(self) -> None:
        self._depth.value = self._memory.depth(
            batch_bytes=self._batch_size * self._form.sample_bytes,
            num_batches=self._num_batches,
            first_epoch=self._epochs == 0,
        )

    def _synchronous(self, rows: Iterator[Tensor], own: int | None) -> Iterator[tuple[Tensor, ...]]:
        """Read each batch when it is asked for.

        Args:
            rows: Sample numbers of each batch.
            own: Seed of the training, if each sample draws from a seed of its own.
        """
        transfer = self._transfer
        if own is not None:
            batches = _read_each(self._samples, self._form, rows, own)
        else:
            batches = (batch for (batch,) in _groups(self._source, self._form, rows, transfer))
        for batch in batches:
            yield transfer.deliver(batch)

    def _ahead(
        self, rows: Callable[[], Iterator[Tensor]], seeds: Seeds, each_sample: bool
    ) -> Iterator[tuple[Tensor, ...]]:
        self._leave_parent()
        if self._workers:
            if self._processes is None:
                self._processes = WorkerProcesses(self._source, self._workers)
            busy = self._prefetcher.active() if self._prefetcher is not None else 0
            self._processes.prepare(busy + 1)
            answers = self._processes.batches(rows, seeds, each_sample=each_sample)
            source = _checked(answers, self._form, rows())
        else:
            source = _groups(self._source, self._form, rows(), self._transfer, self._depth)
        # After the processes: so the program has one thread less when it forks them.
        yield from self._thread().epoch(source, self._depth)

    def _thread(self) -> Prefetcher:
        self._leave_parent()
        if self._prefetcher is None:
            self._prefetcher = Prefetcher(self._transfer)
        return self._prefetcher


def _groups(
    source: BatchDataSet,
    form: BatchForm,
    batches: Iterator[Tensor],
    transfer: Transfer,
    depth: Callable[[], int] = lambda: 0,
) -> Iterator[Group]:
    # Functions, not methods: the thread that runs them must not keep the feed alive.
    if not (isinstance(source, TensorDataSet) and all(map(_is_plain, source.tensors))):
        for rows in batches:
            yield [_read(source, form, rows)]
        return
    each = sum(tensor[:1].nbytes for tensor in source.tensors)
    while (first := next(batches, None)) is not None:
        some = [first, *islice(batches, transfer.group(each * len(first), depth()) - 1)]
        rows = torch.cat(some) if len(some) > 1 else first
        columns = [transfer.gather(tensor, rows) for tensor in source.tensors]
        form.check(columns, "a batch")
        sizes = [len(one) for one in some]
        yield list(zip(*(torch.split(column, sizes) for column in columns), strict=True))


def _is_plain(tensor: Tensor) -> bool:
    """Whether rows of a tensor can be gathered into memory that was made for them."""
    host = tensor.device.type == "cpu" and tensor.layout == torch.strided
    return host and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())


def _read(source: BatchDataSet, form: BatchForm, rows: Tensor) -> tuple[Tensor, ...]:
    numbers = rows.tolist()
    batch = read_rows(source, numbers)
    form.check(batch, described(numbers))
    return batch


def _read_each(
    samples: SampleReader, form: BatchForm, batches: Iterator[Tensor], seed: int
) -> Iterator[tuple[Tensor, ...]]:
    for rows in batches:
        numbers = rows.tolist()
        with kept_generators():  # the training draws from them between two batches
            batch = samples.read(numbers, seed)
        form.check(batch, described(numbers))
        yield batch


def _checked(
    answers: Iterator[tuple[Tensor, ...]], form: BatchForm, batches: Iterator[Tensor]
) -> Iterator[Group]:
    with closing(answers):  # type: ignore[type-var]
        for rows, batch in zip(batches, answers, strict=True):
            form.check(batch, described(rows.tolist()))
            yield [batch]
