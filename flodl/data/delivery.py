"""Parts of an epoch: its batches, and the parts that several consumers take from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple, final

import torch
from torch import Tensor

from flodl.data.batch import Batch, Position, deliver
from flodl.data.feed import Feed, rows_of
from flodl.data.form import BatchForm
from flodl.data.order import EpochOrders
from flodl.data.seeds import Seeds


@final
class EpochCut(NamedTuple):
    """How the order of an epoch becomes batches."""

    samples: int
    """Samples of the data set, at least 1."""
    batch_size: int
    drop_last: bool
    join_remainder: bool
    """Whether a last batch of one sample joins the one before it; only without ``drop_last``."""

    @property
    def joins(self) -> bool:
        """Whether the last batch has one sample more than the others."""
        return (
            self.join_remainder
            and not self.drop_last
            and self.samples > self.batch_size
            and self.samples % self.batch_size == 1
        )

    @property
    def num_batches(self) -> int:
        """Batches in a whole epoch."""
        full, rest = divmod(self.samples, self.batch_size)
        return full if self.drop_last or rest == 0 or self.joins else full + 1

    @property
    def delivered(self) -> int:
        """Samples in the batches of a whole epoch."""
        return self.num_batches * self.batch_size if self.drop_last else self.samples

    def slice_of(self, start: int, stop: int) -> slice:
        """Return where the samples of batches ``start … stop`` are in the order of an epoch.

        Raises:
            ValueError: They are not batches of an epoch.
        """
        _check_range("batches", start, stop, self.num_batches)
        first, last = (
            self.delivered if number == self.num_batches else number * self.batch_size
            for number in (start, stop)
        )
        return slice(first, last)


class Deliveries:
    """The part of a loader that delivers parts of epochs, in any order, to several consumers."""

    _feed: Feed
    _form: BatchForm
    _cut: EpochCut
    _orders: EpochOrders
    _seed: int
    _placed: tuple[Tensor, Tensor] | None = None
    """The latest order that was asked for, and the same in the memory that the feed prefers."""

    def rows(self, epoch: int, number: int) -> Tensor:
        """Return the sample numbers of one batch of an epoch.

        Returns:
            ``[samples]`` int64 on the CPU, in the order of the batch; do not write to it.

        Raises:
            ValueError: The epoch has no batch of that number.
            DataError: A user's sampler returned invalid indices.
        """
        return self.order(epoch)[self._cut.slice_of(number, number + 1)]

    def order(self, epoch: int) -> Tensor:
        """Return the sample numbers of an epoch in order, as :meth:`rows` returns those of a batch.

        Raises:
            DataError: A user's sampler returned invalid indices.
        """
        return self._orders.of(epoch)

    def deliver(self, epoch: int, start: int, stop: int) -> Iterator[tuple[Tensor, Batch]]:
        """Iterate over a part of an epoch, with the sample numbers of each batch.

        Use it if several consumers share an epoch. The batches are those of :meth:`epoch`. Parts
        may be asked for in any order, and the position in :meth:`state_dict` does not change.
        Nothing after the part is loaded; closing the iterator cancels the rest of it.

        Args:
            epoch: Number of the epoch.
            start: First batch.
            stop: One past the last batch.

        Returns:
            Sample numbers as :meth:`rows` returns them, and the batch.

        Raises:
            ValueError: The batches are not all in the epoch.
            DataError: A user's sampler returned invalid indices.
        """
        part = self._cut.slice_of(start, stop)
        order, placed = self._in_place(epoch)
        seeds = Seeds.of(self._seed, epoch, range(start, stop))
        return self._batches(order[part], placed[part], seeds)

    def deliver_some(self, epoch: int, numbers: Sequence[int]) -> Iterator[tuple[Tensor, Batch]]:
        """Iterate over batches of an epoch that need not be consecutive.

        It works as :meth:`deliver` does.

        Args:
            epoch: Number of the epoch.
            numbers: Of the batches, ascending; at least one.

        Raises:
            ValueError: The numbers do not ascend or are not all in the epoch.
            DataError: A user's sampler returned invalid indices.
        """
        if any(after <= before for before, after in pairwise(numbers)):
            raise ValueError("the numbers of batches to deliver must ascend")
        parts = [self._cut.slice_of(number, number + 1) for number in numbers]
        whole = self._in_place(epoch)
        order, placed = (torch.cat([one[part] for part in parts]) for one in whole)
        return self._batches(order, placed, Seeds.of(self._seed, epoch, numbers))

    def deliver_samples(self, epoch: int, start: int, stop: int) -> Batch:
        """Return samples of an epoch as one batch, regardless of the epoch's own batches.

        Args:
            epoch: Number of the epoch.
            start: Place of the first sample in the order of the epoch.
            stop: One past the last place.

        Raises:
            ValueError: There is no such sample, or it is not in the batches of the epoch.
            DataError: A user's sampler returned invalid indices.
        """
        _check_range("samples", start, stop, self._cut.delivered)
        if start == stop:
            raise ValueError(
                f"samples {start} to {stop} is an empty range: a batch has at least one sample"
            )
        _, placed = self._in_place(epoch)
        # Half of the seeds of an epoch belong to whole batches, the other half to these.
        seeds = Seeds.of(self._seed, epoch, [start + (1 << 31)])
        source = self._feed.batches(placed[start:stop], stop - start, seeds=seeds)
        with closing(deliver(source, self._form, Position(epoch, 0))) as batches:
            return next(batches)

    def _in_place(self, epoch: int) -> tuple[Tensor, Tensor]:
        """The order of an epoch: in host memory, and in the memory that the feed prefers."""
        order = self._orders.of(epoch)
        if self._placed is None or self._placed[0] is not order:
            self._placed = order, self._feed.place(order)
        return self._placed

    def _batches(
        self, order: Tensor, placed: Tensor, seeds: Seeds
    ) -> Iterator[tuple[Tensor, Batch]]:
        cut, join = self._cut.batch_size, self._cut.joins
        source = self._feed.batches(placed, cut, seeds=seeds, join_remainder=join)
        return _paired(rows_of(order, cut, join_remainder=join), source, self._form)


def _paired(
    rows: Iterator[Tensor], source: Iterator[tuple[Tensor, ...]], form: BatchForm
) -> Iterator[tuple[Tensor, Batch]]:
    with closing(deliver(source, form, Position(0, 0))) as batches:
        yield from zip(rows, batches, strict=True)


def _check_range(what: str, start: int, stop: int, end: int) -> None:
    if not 0 <= start <= stop <= end:
        raise ValueError(f"{what} {start} to {stop} are outside of an epoch of {end} {what}")
