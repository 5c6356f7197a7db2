"""The order of the samples, which depends only on the epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from flodl.errors import DataError
from flodl.setting import whole


class Sampler(ABC):
    """Order of the samples in each epoch."""

    @abstractmethod
    def indices(self, epoch: int) -> Tensor | Sequence[int]:
        """Return one index per sample of the data set, in the order of the epoch.

        The same epoch must give the same order at every call, because resuming relies on it. An
        index may occur twice (sampling with replacement).
        """


@final
class RandomSampler(Sampler):
    """A new permutation per epoch, drawn from a generator seeded with ``seed + epoch``."""

    def __init__(self, n: int, seed: int = 42) -> None:
        self._n = whole("n", n)
        self._seed = seed

    def indices(self, epoch: int) -> Tensor:
        """Return the permutation of the epoch, ``[n]`` int64 on the CPU."""
        generator = torch.Generator().manual_seed(self._seed + epoch)
        return torch.randperm(self._n, generator=generator, device="cpu")


@final
class SequentialSampler(Sampler):
    """Visits the samples from first to last in every epoch."""

    def __init__(self, n: int) -> None:
        self._n = whole("n", n)

    def indices(self, epoch: int) -> Tensor:  # noqa: ARG002 - every epoch is the same
        """Return ``0 … n-1``, ``[n]`` int64 on the CPU."""
        return torch.arange(self._n, device="cpu")


def epoch_order(sampler: Sampler, epoch: int, n: int) -> Tensor:
    """Ask a sampler for the order of an epoch and check the answer.

    Returns:
        ``[n]`` int64 on the CPU.

    Raises:
        DataError: The sampler returned another number of indices, something that is not an integer,
            or an index outside ``0 … n-1``.
    """
    who = f"{type(sampler).__name__}.indices({epoch})"
    answer: Any = sampler.indices(epoch)  # a user's sampler may return an array
    try:
        if isinstance(answer, np.ndarray) and answer.dtype.kind in "iu":
            # Torch takes no negative strides and no foreign byte order.
            answer = answer.astype(np.int64)
        order = torch.as_tensor(answer, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{who} gave a {type(answer).__name__} that is not a list or tensor of indices: {error}"
        ) from error
    if order.dim() != 1 or order.shape[0] != n:
        raise DataError(
            f"{who} gave indices of shape {list(order.shape)} for a data set of {n} samples; "
            f"return exactly {n} of them"
        )
    if order.is_floating_point() or order.is_complex() or order.dtype == torch.bool:
        raise DataError(f"{who} gave {order.dtype} values; indices are integers")
    order = order.to(torch.int64)
    low, high = int(order.min()), int(order.max())
    if low < 0 or high >= n:
        raise DataError(
            f"{who} gave index {low if low < 0 else high}; a data set of {n} samples has "
            f"0 to {n - 1}"
        )
    return order
