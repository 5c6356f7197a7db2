"""Parts of an epoch: its batches, and the parts that several consumers take from it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple, final

import torch
from torch import Tensor

from flodl.data.batch import Batch, Position, deliver
from flodl.data.feed import Feed, rows_of
from flodl.data.form import BatchForm
from flodl.data.sampler import Sampler, epoch_order
from flodl.data.seeds import Seeds

_EPOCHS = 2
"""Number of orders kept: a window may begin in one epoch and end in the next."""


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


@final
class Deliveries:
    """Delivers parts of epochs, in any order, from a feed that other consumers may also use.

    Args:
        feed: The source of the batches.
        form: Names of the tensors of a batch.
        cut: How an epoch becomes batches.
        sampler: Returns the order of each epoch.
        seed: With epoch and batch, it decides what random transforms in worker processes draw.
    """

    def __init__(
        self, feed: Feed, form: BatchForm, cut: EpochCut, sampler: Sampler, seed: int
    ) -> None:
        self._feed = feed
        self._form = form
        self._cut = cut
        self._sampler = sampler
        self._seed = seed
        self._orders: OrderedDict[int, tuple[Tensor, Tensor]] = OrderedDict()

    def rows(self, epoch: int, number: int) -> Tensor:
        """Return the sample numbers of one batch; see ``DataLoader.rows``."""
        return self.order(epoch)[self._cut.slice_of(number, number + 1)]

    def order(self, epoch: int) -> Tensor:
        """Return the order of an epoch; see ``DataLoader.order``."""
        return self._order(epoch)[0]

    def known(self, epoch: int) -> Tensor | None:
        """Return the order of an epoch if it is kept."""
        found = self._orders.get(epoch)
        return None if found is None else found[0]

    def batches(self, epoch: int, start: int, stop: int) -> Iterator[tuple[Tensor, Batch]]:
        """Deliver consecutive batches; see ``DataLoader.deliver``."""
        part = self._cut.slice_of(start, stop)
        order, placed = self._order(epoch)
        cut, join = self._cut.batch_size, self._cut.joins
        seeds = self._seeds(epoch, range(start, stop))
        source = self._feed.batches(placed[part], cut, seeds=seeds, join_remainder=join)
        rows = rows_of(order[part], cut, join_remainder=join)
        return _paired(rows, source, self._form)

    def numbered(self, epoch: int, numbers: Sequence[int]) -> Iterator[tuple[Tensor, Batch]]:
        """Deliver batches that need not be consecutive; see ``DataLoader.deliver_some``.

        Raises:
            ValueError: Their numbers do not ascend.
        """
        if any(after <= before for before, after in pairwise(numbers)):
            raise ValueError("the numbers of batches to deliver must ascend")
        parts = [self._cut.slice_of(number, number + 1) for number in numbers]
        order, placed = self._order(epoch)
        cut, join = self._cut.batch_size, self._cut.joins
        source = self._feed.batches(
            torch.cat([placed[part] for part in parts]),
            cut,
            seeds=self._seeds(epoch, numbers),
            join_remainder=join,
        )
        rows = rows_of(torch.cat([order[part] for part in parts]), cut, join_remainder=join)
        return _paired(rows, source, self._form)

    def samples(self, epoch: int, start: int, stop: int) -> Batch:
        """Deliver some samples as one batch; see ``DataLoader.deliver_samples``.

        Raises:
            ValueError: There are no samples, or some are not in the batches of an epoch.
        """
        _check_range("samples", start, stop, self._cut.delivered)
        if start == stop:
            raise ValueError(
                f"samples {start} to {stop} is an empty range: a batch has at least one sample"
            )
        _, placed = self._order(epoch)
        # Half of the seeds of an epoch belong to whole batches, the other half to these.
        seeds = self._seeds(epoch, [start + (1 << 31)])
        source = self._feed.batches(placed[start:stop], stop - start, seeds=seeds)
        with closing(deliver(source, self._form, Position(epoch, 0))) as batches:
            return next(batches)

    def _seeds(self, epoch: int, numbers: Sequence[int]) -> Seeds:
        return Seeds.of(self._seed, epoch, numbers)

    def _order(self, epoch: int) -> tuple[Tensor, Tensor]:
        """The order of an epoch: in host memory, and in the memory that the feed prefers."""
        found = self._orders.get(epoch)
        if found is None:
            order = epoch_order(self._sampler, epoch, self._cut.samples)
            found = self._orders[epoch] = (order, self._feed.place(order))
            if len(self._orders) > _EPOCHS:
                self._orders.popitem(last=False)
        else:
            self._orders.move_to_end(epoch)
        return found


def _paired(
    rows: Iterator[Tensor], source: Iterator[tuple[Tensor, ...]], form: BatchForm
) -> Iterator[tuple[Tensor, Batch]]:
    with closing(deliver(source, form, Position(0, 0))) as batches:
        yield from zip(rows, batches, strict=True)


def _check_range(what: str, start: int, stop: int, end: int) -> None:
    if not 0 <= start <= stop <= end:
        raise ValueError(f"{what} {start} to {stop} are outside of an epoch of {end} {what}")
