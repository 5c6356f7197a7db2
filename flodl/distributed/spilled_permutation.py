"""``torch.randperm`` for more numbers than should be in memory at once.

torch shuffles by Fisher and Yates: step ``k`` exchanges place ``k`` with a place ``j ≥ k`` that it
draws from a Mersenne Twister, and is then done with place ``k`` (``randperm_cpu`` in
aten/src/ATen/native/TensorFactories.cpp). Here the places lie in a temporary file, and a block of
steps is carried out at once: which step a value comes from is found by sorting the block's draws,
then the file is passed over once for the values that come from, and go, behind the block.
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
"""Steps of a block; it takes about 32 bytes for each."""
_CHUNK = 1 << 22
"""Numbers that are drawn, read or written at a time."""
BELOW = (2**32 - 1) // 20
"""Numbers from which on torch shuffles otherwise: it grows the permutation from its front and draws
64 bits per step, and only its last step tells the first number."""


@final
class SpilledPermutation:
    """The numbers ``0 … count-1`` in the order of ``torch.randperm``, given out from the front.

    Args:
        count: How many numbers; below :data:`BELOW`.
        seed: Of torch's generator.
        block: Steps that are carried out at once; None: :data:`BLOCK`.

    Raises:
        RunDirectoryError: The disk has no room for 4 bytes per number.
    """

    def __init__(self, count: int, seed: int, *, block: int | None = None) -> None:
        self._count, self._block = count, block or BLOCK
        self._draws = np.random.MT19937()
        # torch's generator takes 32 bits of a seed and expands them as the reference code does.
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
                "room"
            ) from error

    def part(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the numbers at the places ``start … stop-1``; parts come in order."""
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
        """The step before that drew the same place."""
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
        """Draw the places of some steps; return places, and steps from 0 on, by place and step."""
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
        """Draw the place that each step exchanges its own with; the last step draws nothing."""
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
        """Take what steps get from places behind the block, and leave there what they give."""
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
    """Return for every step the place of the block whose value it finds at its own place.

    Its own place was left by the last step that drew it; that one's value came from its own place,
    and so on back to a place that nobody had drawn before.
    """
    inside = (places < high) & final_use
    at, by = (places[inside] - low).astype(np.int32), steps[inside]
    source = np.arange(high - low, dtype=np.int32)
    # A step that draws its own place leaves it as it is.
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
