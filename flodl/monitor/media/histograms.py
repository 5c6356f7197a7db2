"""Histograms, computed on the device of a tensor and never waited for."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from flodl.monitor.media.captured import Captured, is_tensor
from flodl.monitor.media.records import Histogram

Reader: TypeAlias = Callable[[], Histogram]
"""Returns the histogram; on another thread it may wait for a GPU."""

MOST_BINS = 255
_SMALL = 1 << 13
"""Values of a tensor up to which it is counted together with others."""
_BLOCK = 1 << 15
"""Values per block: they stay in the processor's cache from one operation to the next."""


def histogram_of(values: Any, bins: int = 64, *, scale: float = 1.0) -> Reader:
    """Count values into bins between the smallest and the largest finite one.

    Values on the CPU are counted at once. Those on a GPU are counted by the GPU, and the returned
    function fetches only the counts.

    Args:
        values: A tensor, array or list of numbers, of any shape.
        bins: 1 to 255.
        scale: The values are divided by this.

    Raises:
        ValueError: There are no values, they are not real numbers, or `bins` is out of range.
    """
    if not 1 <= bins <= MOST_BINS:
        raise ValueError(f"bins={bins}: use 1 to {MOST_BINS}")
    if not is_tensor(values):
        captured = Captured(values)
        _check(captured.shape, captured.dtype)
        return _ready(count_array(captured.array(), bins, scale))
    tensor = values.detach()
    _check(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    if tensor.device.type != "cpu":
        return _count_on_device(tensor, bins, scale)
    if str(tensor.dtype) in ("torch.bfloat16", "torch.bool"):  # NumPy lacks the first
        tensor = tensor.float()
    return _ready(count_array(_shared(tensor), bins, scale))


def _shared(tensor: Any) -> np.ndarray[Any, Any]:
    """Return a tensor as an array; its owner can still resize it, unlike after ``numpy()``."""
    return np.from_dlpack(tensor)


def histograms_of(tensors: Sequence[tuple[Any, float]], bins: int = 64) -> list[Reader]:
    """Count several tensors; small ones on the CPU together, because NumPy's calls take longer.

    Args:
        tensors: Tensors with values, and what the values are divided by.
        bins: 1 to 255.

    Returns:
        What :func:`histogram_of` returns for each tensor.
    """
    small = [(tensor, scale) for tensor, scale in tensors if _is_small(tensor)]
    arrays = [_shared(tensor).ravel(order="K") for tensor, _ in small]
    counted = iter(count_together(arrays, bins, [scale for _, scale in small]))
    return [
        _ready(next(counted)) if _is_small(tensor) else histogram_of(tensor, bins, scale=scale)
        for tensor, scale in tensors
    ]


def _is_small(tensor: Any) -> bool:
    return (
        tensor.device.type == "cpu"
        and str(tensor.dtype) == "torch.float32"
        and 0 < tensor.numel() <= _SMALL
    )


def count_together(arrays: Sequence[Any], bins: int, scales: Sequence[float]) -> list[Histogram]:
    """Count the values of several flat arrays of float32 with the same calls of NumPy."""
    if not arrays:
        return []
    sizes = [array.size for array in arrays]
    starts = np.cumsum([0, *sizes[:-1]])
    flat = np.concatenate(arrays)
    lows, highs = (one.reduceat(flat, starts).tolist() for one in (np.minimum, np.maximum))
    ends = [_range(low, high) for low, high in zip(lows, highs, strict=True)]
    if not all(math.isfinite(low + high) and not _is_wide(low, high) for low, high in ends):
        return [
            count_array(array, bins, scale) for array, scale in zip(arrays, scales, strict=True)
        ]
    first = np.array([low for low, _ in ends], np.float32)
    factor = np.array([bins / (high - low) for low, high in ends], np.float32)
    places = (flat - np.repeat(first, sizes)) * np.repeat(factor, sizes)
    rows = np.repeat(np.arange(len(arrays)) * (bins + 1), sizes)
    amounts = np.bincount(places.astype(np.uint8) + rows, minlength=len(arrays) * (bins + 1))
    exact = flat.astype(np.float64)
    totals, squares = (np.add.reduceat(one, starts).tolist() for one in (exact, exact * exact))
    facts = zip(ends, amounts.reshape(len(arrays), -1), totals, squares, scales, strict=True)
    return [
        _histogram(low, high, counts, total, square, (0, 0, 0), scale)
        for (low, high), counts, total, square, scale in facts
    ]


def count_array(values: Any, bins: int, scale: float = 1.0) -> Histogram:
    """Count the values of an array."""
    if values.dtype.kind != "f":
        values = values.astype(np.float64)
    elif values.dtype.itemsize < 4:
        values = values.astype(np.float32)
    # In the order of the memory, so that a transposed or channels-last tensor is not copied.
    flat = values.ravel(order="K")
    low, high = float(flat.min()), float(flat.max())
    nan = above = below = 0
    if not (math.isfinite(low) and math.isfinite(high)):
        nan = int(np.isnan(flat).sum())
        above, below = int((flat == np.inf).sum()), int((flat == -np.inf).sum())
        flat = flat[np.isfinite(flat)]
        if not flat.size:
            return Histogram(0.0, 0.0, (0,) * bins, 0.0, 0.0, nan, above, below)
        low, high = float(flat.min()), float(flat.max())
    first, last = _range(low, high)
    counts = np.zeros(bins + 1, np.int64)
    total = squares = 0.0
    wide = _is_wide(first, last)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        if wide:
            block = block.astype(np.float64)
        total += float(block.sum(dtype=np.float64))
        squares += float(np.dot(block, block))
        if math.isinf(last - first):
            places = (block / 2 - first / 2) * (bins / (last / 2 - first / 2))
        else:
            places = (block - first) * (bins / (last - first))
        counts += np.bincount(places.astype(np.uint8), minlength=bins + 1)
    return _histogram(first, last, counts, total, squares, (nan, above, below), scale)


def _count_on_device(tensor: Any, bins: int, scale: float) -> Reader:
    """Queue the counting on a device; nothing here waits for it."""
    torch: Any = sys.modules["torch"]
    values = tensor.reshape(-1)
    values = values if values.dtype in (torch.float32, torch.float64) else values.float()
    finite = values.isfinite()
    low = values.where(finite, math.inf).amin()
    high = values.where(finite, -math.inf).amax()
    # Halves, because high - low may be infinite. Places that are not finite lie outside of the
    # bins, and histc leaves them out.
    width = high / 2 - low / 2
    width = width.where(width > 0, torch.ones_like(width))
    counts = torch.histc((values / 2 - low / 2) / width, bins=bins, min=0, max=1)
    known = values.where(finite, 0).double() if values.device.type != "mps" else values
    sums = [known.sum(), (known * known).sum(), values.isnan().sum()]
    sums += [(values == math.inf).sum(), (values == -math.inf).sum(), finite.sum()]
    kind = torch.float32 if values.device.type == "mps" else torch.float64
    facts = torch.stack([one.to(kind) for one in (low, high, *sums)])
    captured = Captured(torch.cat([facts, counts.to(kind)]))

    def read() -> Histogram:
        found = captured.array()
        lowest, highest, total, squares, nan, above, below, count = found[:8].tolist()
        others = int(nan), int(above), int(below)
        if not count:
            return Histogram(0.0, 0.0, (0,) * bins, 0.0, 0.0, *others)
        first, last = _range(lowest, highest)
        amounts = np.append(found[8:].astype(np.int64), 0)
        if first != lowest:  # all values are equal: they lie in the middle of a widened range
            amounts[:] = 0
            amounts[bins // 2] = int(count)
        return _histogram(first, last, amounts, total, squares, others, scale)

    return read


def _is_wide(first: float, last: float) -> bool:
    """Whether float32 has no room for the sum of squares or for the width of such bins."""
    return max(abs(first), abs(last)) > 1e15 or last - first < 1e-30


def _range(low: float, high: float) -> tuple[float, float]:
    """Return the range of the bins; it is wider than the values if all are equal."""
    if low < high:
        return low, high
    half = max(0.5, abs(low) * 1e-3)
    return low - half, high + half


def _histogram(
    low: float,
    high: float,
    counts: Any,
    total: float,
    squares: float,
    others: tuple[int, int, int],
    scale: float,
) -> Histogram:
    bins = len(counts) - 1
    counts[bins - 1] += counts[bins]  # the largest value belongs to the last bin
    amounts = tuple(counts[:bins].tolist())
    by = 1 / scale
    return Histogram(low * by, high * by, amounts, total * by, squares * by * by, *others)


def _check(shape: tuple[int, ...], dtype: str) -> None:
    if not math.prod(shape):
        raise ValueError(f"a histogram of shape {list(shape)} has no values")
    if "complex" in dtype:
        raise ValueError(
            f"a histogram of {dtype} values with shape {list(shape)}: pass .abs(), .real or .imag"
        )


def _ready(histogram: Histogram) -> Reader:
    return lambda: histogram
