"""Data sets that the tests of loading share."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from flodl.data import Batch, BatchDataSet, DataLoader, DataSet


class Numbers(DataSet):
    """Sample i is i."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def get(self, index: int) -> Sequence[Tensor]:
        return [torch.tensor(index)]


class Recorded(Numbers):
    """Also remembers which samples were read."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.read: list[int] = []

    def get(self, index: int) -> Sequence[Tensor]:
        self.read.append(index)
        return super().get(index)


class Failing(Numbers):
    """Sample 7 cannot be read."""

    def get(self, index: int) -> Sequence[Tensor]:
        if index == 7:
            raise FileNotFoundError(2, "No such picture", "seven.png")
        return super().get(index)


class Stubborn(Numbers):
    """Raises what cannot be pickled."""

    def get(self, index: int) -> Sequence[Tensor]:
        if index == 1:
            raise RuntimeError(lambda: None)
        return super().get(index)


class Dying(Numbers):
    """The process that reads sample 3 ends at once, until a file says that it did."""

    def __init__(self, n: int, mark: Path) -> None:
        super().__init__(n)
        self.mark = mark

    def get(self, index: int) -> Sequence[Tensor]:
        if index == 3 and not self.mark.exists():
            self.mark.touch()
            os._exit(1)
        return super().get(index)


class Noisy(Numbers):
    """Sample i is i and a random number."""

    def get(self, index: int) -> Sequence[Tensor]:
        return [torch.tensor(index), torch.rand(())]


class Whole(BatchDataSet):
    """Row i is i; reads rows of many samples at once, and may run out of memory doing it."""

    def __init__(self, n: int, *, most: int | None = None) -> None:
        self.n = n
        self.most = most

    def __len__(self) -> int:
        return self.n

    def get_batch(self, indices: Sequence[int]) -> Sequence[Tensor]:
        if self.most is not None and len(indices) > self.most:
            raise torch.OutOfMemoryError("out of memory")
        return [torch.tensor(indices)]


class Slow(Whole):
    """Takes a moment for each batch."""

    def get_batch(self, indices: Sequence[int]) -> Sequence[Tensor]:
        time.sleep(0.003)
        return super().get_batch(indices)


def collect(batches: Iterable[Batch], seen: list[int]) -> None:
    """Put the samples of batches of one into a list, up to where the batches end or fail."""
    seen.extend(int(batch[0]) for batch in batches)


def orders(loader: DataLoader, epoch: int, start_batch: int = 0) -> list[list[int]]:
    """The samples of each batch of an epoch."""
    return [batch[0].tolist() for batch in loader.epoch(epoch, start_batch)]
