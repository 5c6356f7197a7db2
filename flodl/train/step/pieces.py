"""Split a batch into pieces that are trained one after the other, as if they were one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor

from flodl.data.structure import changed, samples_in


def pieces(batch: Any, most: int | None) -> Iterator[tuple[Any, float]]:
    """Yield the pieces of a batch, and for each its part of the samples.

    Args:
        batch: Any structure of tensors, whose dimension 0 runs over the samples.
        most: Samples of a piece; None for the whole batch.
    """
    count = samples_in(batch) if most is not None else 0
    if most is None or count <= most:
        yield batch, 1.0
        return
    for start in range(0, count, most):
        stop = min(start + most, count)
        rows = partial(_rows, count=count, start=start, stop=stop)
        yield changed(batch, rows), (stop - start) / count


def _rows(tensor: Tensor, count: int, start: int, stop: int) -> Tensor:
    """Return some rows of a tensor that has a row per sample; another tensor stays whole."""
    return tensor[start:stop] if tensor.dim() and len(tensor) == count else tensor
