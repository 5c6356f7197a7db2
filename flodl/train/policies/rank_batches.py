"""Load the batches that a plan gives to a rank; a plan counts them through all epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

from flodl.ranks.planning.spans import cut

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from torch import Tensor

    from flodl.data import Batch, DataLoader
    from flodl.ranks.planning.spans import Span, Spans


@final
class RankBatches:
    """The batches of one rank.

    Args:
        loader: Loads them; the same on all ranks.
        batches_per_epoch: Batches of all ranks in an epoch.
        rank: Number of this process.
    """

    def __init__(self, loader: DataLoader, batches_per_epoch: int, rank: int) -> None:
        self._loader, self._length, self._rank = loader, batches_per_epoch, rank

    def batches(self, spans: Spans) -> Generator[tuple[int, Tensor, Batch]]:
        """Load batches; yield the number, the sample numbers and the data of each."""
        length = self._length
        for first_of_span, stop in spans:
            start = first_of_span
            while start < stop:
                epoch, first = divmod(start, length)
                last = min(stop - epoch * length, length)
                delivered = self._loader.deliver(epoch, first, last)
                for number, (rows, batch) in enumerate(delivered, start):
                    yield number, rows, batch
                start = epoch * length + last

    def some_batches(self, numbers: Sequence[int]) -> Generator[tuple[int, Tensor, Batch]]:
        """Load single batches of one epoch, as :meth:`batches` does; gaps are allowed."""
        if not numbers:
            return
        length = self._length
        epoch = numbers[0] // length
        within = [number - epoch * length for number in numbers]
        delivered = self._loader.deliver_some(epoch, within)
        for number, (rows, batch) in zip(numbers, delivered, strict=True):
            yield number, rows, batch

    def share_of_samples(
        self, span: Span, ratios: tuple[float, ...]
    ) -> tuple[int, Tensor, Batch, int] | None:
        """Split the samples of some batches by ratios and load this rank's part.

        Returns:
            Number of the first batch, sample numbers, the batch, and how many samples the lower
            ranks have; None if this rank has no samples.
        """
        length, rank = self._length, self._rank
        epoch, first = divmod(span[0], length)
        rows = torch.cat(
            [self._loader.rows(epoch, number - epoch * length) for number in range(*span)]
        )
        start, stop = cut(len(rows), ratios)[rank : rank + 2]
        if start == stop:
            return None
        offset = first * self._loader.batch_size
        batch = self._loader.deliver_samples(epoch, offset + start, offset + stop)
        return span[0], rows[start:stop], batch, start
