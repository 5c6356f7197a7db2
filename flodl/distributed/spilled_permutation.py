"""``torch.randperm`` for more numbers than fit into memory.

torch uses the Fisher-Yates shuffle. Step ``k`` swaps place ``k`` with a place ``j ≥ k``, drawn from
a Mersenne Twister; place ``k`` is final then (``randperm_cpu`` in
aten/src/ATen/native/TensorFactories.cpp). Here the places are in a temporary file, and a block of
steps runs at once. Sorting the draws of the block shows from which step each value comes. One pass
over the file then swaps the values with the places after the block.
"""

from __future__ import annotations

import tempfile
import weakref
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from flodl.errors import RunDirectoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 1 << 25
"""Steps per block; each step takes about 32 bytes of memory."""
_CHUNK = 1 << 22
"""Numbers that are drawn, read or written at a time."""
BELOW = (2**32 - 1) // 20
"""From this many numbers on, torch shuffles in another way: it builds the permutation from the
front and draws 64 bits per step, so that only the last step decides the first number."""


@final
class SpilledPermutation:
    """The numbers ``0 … count-1`` in the order of ``torch.randperm``, read from front to back.

    Args:
        count: How many numbers; below :data:`BELOW`.
        seed: Seed of torch's generator.
        block: Steps per block; None: :data:`BLOCK`.

    Raises:
        RunDirectoryError: The disk has no space for 4 bytes per number.
    """

    def __init__(self, count: int, seed: int, *, block: int | None = None) -> None:
        self._count, self._block = count, block or BLOCK
        self._draws = np.random.MT19937()
        # torch's generator uses 32 bits of a seed and expands them as the reference code does.
        state: Any = np.random.RandomState(seed & 0xFFFFFFFF).get_state(legacy=False)
        self._draws.state = state
        self._ready = np.empty(0, dtype=np.uint32)
        self._begin = self._end = 0
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        weakref.finalize(self, self._file.close)
        try:
            for start, stop in _chunks(0, count):
                self._write(start, np.arange(start, stop, dtype=np.uint32))
        except OSError as error:
            raise RunDirectoryError(
                f"the order of {count:,} samples needs {4 * count:,} bytes of temporary space in "
                f"{tempfile.gettempdir()}: {error.strerror or error}; set TMPDIR to a folder with "
                "enough space"
            ) from error

    def part(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the numbers at positions ``start … stop-1``; ask for parts in order."""
        pieces = []
        while start < stop:
            while self._end <= start:
                self._next_block()
            last = min(stop, self._end)
            pieces.append(self._ready[start - self._begin : last - self._begin])
            start = last
        return np.concatenate(pieces).astype(np.int64)

    def _next_block(self) -> None:
        low, high = self._end, min(self._end + self._block, self._count)
        self._ready = np.empty(0, dtype=np.uint32)
        places, steps = self._sorted_draws(low, high)
        again = np.concatenate(([False], places[1:] == places[:-1]))
        final_use = np.concatenate((~again[1:], [True]))
        size = high - low

        earlier = np.full(size, -1, dtype=np.int32)
        """The previous step that drew the same place; -1 if there is none."""
        earlier[steps[again]] = steps[:-1][again[1:]]
        source = _sources(places, steps, final_use, earlier, low, high)
        own = self._read(low, high)
        order = np.empty(size, dtype=np.uint32)
        known = earlier >= 0
        order[known] = own[source[earlier[known]]]
        del known, earlier
        cut = int(np.searchsorted(places, high))
        fresh = ~again[:cut]
        order[steps[:cut][fresh]] = own[places[:cut][fresh] - low]
        first, after = ~again[cut:], own[source[steps[cut:][final_use[cut:]]]]
        self._behind(order, places[cut:][first], steps[cut:][first], after, high)
        self._ready, self._begin, self._end = order, low, high

    def _sorted_draws(self, low: int, high: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Draw the places of steps; return places and steps (from 0), sorted by place and step."""
        bits = (high - low).bit_length()
        keys = np.empty(high - low, dtype=np.int64)
        for start, stop in _chunks(low, high):
            step = np.arange(start, stop, dtype=np.int64)
            keys[start - low : stop - low] = (self._drawn(step) << bits) | (step - low)
        keys.sort()
        steps = (keys & ((1 << bits) - 1)).astype(np.int32)
        keys >>= bits
        return keys, steps

    def _drawn(self, step: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw the place that each step swaps with its own; the last step draws nothing."""
        drawing = len(step) - int(step[-1] == self._count - 1)
        left = (self._count - step[:drawing]).astype(np.uint64)
        drawn = self._draws.random_raw(drawing)
        place = step.copy()
        place[:drawing] += (drawn % left).astype(np.int64)
        return place

    def _behind(
        self,
        order: NDArray[np.uint32],
        places: NDArray[np.int64],
        steps: NDArray[np.int32],
        after: NDArray[np.uint32],
        high: int,
    ) -> None:
        """Swap the values of steps with the places after the block."""
        for start, stop in _chunks(high, self._count):
            begin, end = np.searchsorted(places, [start, stop]).tolist()
            if begin == end:
                continue
            held, inside = self._read(start, stop), places[begin:end] - start
            order[steps[begin:end]] = held[inside]
            held[inside] = after[begin:end]
            self._write(start, held)

    def _read(self, start: int, stop: int) -> NDArray[np.uint32]:
        values = np.empty(stop - start, dtype=np.uint32)
        self._file.seek(4 * start)
        if self._file.readinto(values.data.cast("B")) != values.nbytes:
            raise RunDirectoryError(f"a temporary file in {tempfile.gettempdir()} was cut short")
        return values

    def _write(self, start: int, values: NDArray[np.uint32]) -> None:
        self._file.seek(4 * start)
        self._file.write(values.data.cast("B"))


def _sources(
    places: NDArray[np.int64],
    steps: NDArray[np.int32],
    final_use: NDArray[np.bool_],
    earlier: NDArray[np.int32],
    low: int,
    high: int,
) -> NDArray[np.int32]:
    """Return for every step the original place, in the block, of the value at the step's own place.

    The last step that drew this place has put its own value there. That value came from that
    step's own place, and so on, back to a place that no earlier step had drawn.
    """
    inside = (places < high) & final_use
    at, by = (places[inside] - low).astype(np.int32), steps[inside]
    source = np.arange(high - low, dtype=np.int32)
    # A step that draws its own place does not change it.
    before = np.where(by == at, earlier[by], by)
    drawn = before >= 0
    source[at[drawn]] = before[drawn]
    while True:
        further = source[source]
        if np.array_equal(further, source):
            return source
        source = further


def _chunks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for begin in range(start, stop, _CHUNK):
        yield begin, min(begin + _CHUNK, stop)
