"""The step curves of a run in its folder ``steps``: read in a resolution, or written at once.

``docs/reference/run-record.md`` describes the files. An overview reads the file of blocks and the
few points after the last block. A part of a curve also reads its points.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fdl.base.masking import KNOWN
from fdl.base.own_files import is_name, open_own, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdl.runs.importing.foreign import Curve

FOLDER = "steps"
_INDEX = "index.json"
_POINT, _ROW, _BYTES = 2, 6, 8
_VERSION = 1
_NEW_BLOCK = 128
"""Points of a block in the files that fdl writes."""


class Pieces(NamedTuple):
    """A curve in pieces. A piece is one point, or the range of several neighbouring points.

    All columns have the same length.

    Attributes:
        steps: The middle step of each piece, rising.
        low: Its lowest finite value; nan without one.
        high: Its highest finite value.
        mean: The mean of its finite values.
        broken: How many of its values are not finite.
    """

    steps: list[float]
    low: list[float]
    high: list[float]
    mean: list[float]
    broken: list[float]


class StepFiles:
    """The step curves of one run.

    Attributes:
        names: The names of the curves, in the order in which they began.
    """

    def __init__(self, folder: Path, index: dict[str, object]) -> None:
        curves = index.get("curves")
        self._folder = folder
        self._stems = dict(curves) if isinstance(curves, dict) else {}
        self._index = index
        block = index.get("block")
        self._block = block if isinstance(block, int) and block > 0 else 1
        self.names = [name for name, stem in self._stems.items() if is_name(stem)]

    @classmethod
    def read(cls, run: Path) -> StepFiles:
        """The curves of a run's folder; none if it has no such files, or their format is newer."""
        index = read_json(run / FOLDER / _INDEX) or {}
        return cls(run / FOLDER, index if index.get("version") == _VERSION else {})

    def signature(self) -> tuple[int, ...]:
        """Numbers that change whenever a curve gets points."""
        stems = [self._stems[name] for name in self.names]
        return tuple(self._size(f"{stem}.f64") for stem in stems)

    def size(self, name: str) -> int:
        """The number of points of a curve."""
        return self._size(f"{self._stems[name]}.f64") // (_POINT * _BYTES)

    def points_from(self, name: str, start: int, count: int) -> Pieces:
        """The points of a curve from its number ``start`` on, in about ``count`` pieces."""
        points = self._numbers(f"{self._stems[name]}.f64", start * _POINT, _POINT)
        # The last value is told as it is.
        return _joined(merged(_of_points(points[:-_POINT]), count), _of_points(points[-_POINT:]))

    def epochs(self) -> Line:
        """Finished epochs by step."""
        return self._line("epochs")

    def seconds(self) -> Line:
        """Unix time by step."""
        return self._line("time")

    def pieces(
        self, name: str, count: int, first: float = -math.inf, last: float = math.inf
    ) -> Pieces:
        """A curve, or its part from step ``first`` to ``last``, in about ``count`` pieces.

        The nearest piece outside the range is included at either end, so that a line drawn through
        the pieces extends to the edge of the plot. An unknown name gives no pieces.
        """
        stem = self._stems.get(name)
        if not is_name(stem):
            return Pieces([], [], [], [], [])
        rows = self._numbers(f"{stem}.blocks.f64", 0, _ROW)
        begins, ends = rows[0::_ROW], rows[1::_ROW]
        low = max(0, bisect_left(ends, first) - 1)
        high = min(len(begins), bisect_right(begins, last) + 1)
        if 2 * (high - low) >= count:
            made = _of_rows(rows[low * _ROW : high * _ROW])
            if high == len(begins):
                tail = self._numbers(f"{stem}.f64", high * self._block * _POINT, _POINT)
                # As one piece like the blocks before it, or as several if blocks are missing.
                made = _joined(made, _merged_with_gaps(_of_points(tail), self._block))
            return merged(made, count)
        size = None if high == len(begins) else (high - low) * self._block * _POINT
        points = self._numbers(f"{stem}.f64", low * self._block * _POINT, _POINT, size)
        start = max(0, bisect_left(points[0::_POINT], first) - 1)
        stop = bisect_right(points[0::_POINT], last) + 1
        return merged(_of_points(points[start * _POINT : stop * _POINT]), count)

    def _line(self, kind: str) -> Line:
        stem = self._index.get(kind)
        numbers = self._numbers(f"{stem}.f64", 0, _POINT) if is_name(stem) else array("d")
        return Line(numbers[0::_POINT].tolist(), numbers[1::_POINT].tolist())

    def _size(self, name: str) -> int:
        try:
            return (self._folder / name).stat().st_size
        except OSError:
            return 0

    def _numbers(self, name: str, start: int, group: int, size: int | None = None) -> array[float]:
        """Doubles of a file, from number ``start`` on, in whole groups."""
        numbers = array("d")
        try:
            with open_own(self._folder / name) as stream:
                stream.seek(start * _BYTES)
                data = stream.read() if size is None else stream.read(size * _BYTES)
        except OSError:
            return numbers  # thinned meanwhile, or never written
        numbers.frombytes(data[: len(data) // (group * _BYTES) * group * _BYTES])
        return little_endian(numbers)


class Line:
    """A line through points with rising positions.

    Args:
        at: The positions.
        values: One value each.
    """

    def __init__(self, at: list[float], values: list[float]) -> None:
        self.at = at
        self.values = values

    def __bool__(self) -> bool:
        return bool(self.at)

    def flipped(self) -> Line:
        """The same line with positions and values exchanged; values must rise."""
        return Line(self.values, self.at)

    def read(self, positions: list[float]) -> list[float]:
        """The values at rising positions; nan outside the line."""
        at, values = self.at, self.values
        if not at:
            return [math.nan] * len(positions)
        found, place, end = [], 0, len(at) - 1
        for position in positions:
            while place < end and at[place + 1] <= position:
                place += 1
            if position < at[0] or position > at[end]:
                found.append(math.nan)
            elif place == end or at[place] == position:
                found.append(values[place])
            else:
                part = (position - at[place]) / (at[place + 1] - at[place])
                found.append(values[place] + part * (values[place + 1] - values[place]))
        return found


def merged(pieces: Pieces, count: int) -> Pieces:
    """At most about ``count`` pieces, each made of equally many neighbours."""
    width = -(-len(pieces.steps) // max(1, count))
    if width < 2:
        return pieces
    if any(pieces.broken):
        return _merged_with_gaps(pieces, width)
    whole = len(pieces.steps) // width * width
    ends = [column[whole:] for column in pieces]

    def parts(column: list[float]) -> list[list[float]]:
        return [column[start:whole:width] for start in range(width)]

    # map() with several columns is several times as fast as a loop over the pieces.
    made = Pieces(
        [sum(row) / width for row in zip(*parts(pieces.steps), strict=True)],
        list(map(min, *parts(pieces.low))),
        list(map(max, *parts(pieces.high))),
        [sum(row) / width for row in zip(*parts(pieces.mean), strict=True)],
        [0.0] * (whole // width),
    )
    rest = Pieces(*ends)
    return _joined(made, _merged_with_gaps(rest, width)) if rest.steps else made


def _merged_with_gaps(pieces: Pieces, width: int) -> Pieces:
    made = Pieces([], [], [], [], [])
    for start in range(0, len(pieces.steps), width):
        row = slice(start, start + width)
        finite = [value for value in pieces.mean[row] if math.isfinite(value)]
        lows = [value for value in pieces.low[row] if math.isfinite(value)]
        highs = [value for value in pieces.high[row] if math.isfinite(value)]
        steps = pieces.steps[row]
        made.steps.append(sum(steps) / len(steps))
        made.low.append(min(lows, default=math.nan))
        made.high.append(max(highs, default=math.nan))
        made.mean.append(math.fsum(finite) / len(finite) if finite else math.nan)
        made.broken.append(sum(pieces.broken[row]))
    return made


def of_values(steps: list[float], values: list[float]) -> Pieces:
    """Pieces of one point each."""
    broken = [0.0 if math.isfinite(value) else 1.0 for value in values]
    if any(broken):
        values = [value if math.isfinite(value) else math.nan for value in values]
    return Pieces(steps, values, values, values, broken)


def _of_points(numbers: array[float]) -> Pieces:
    return of_values(numbers[0::_POINT].tolist(), numbers[1::_POINT].tolist())


def _of_rows(rows: array[float]) -> Pieces:
    columns = [rows[place::_ROW].tolist() for place in range(_ROW)]
    steps = [(a + b) / 2 for a, b in zip(columns[0], columns[1], strict=True)]
    return Pieces(steps, *columns[2:])


def _joined(one: Pieces, two: Pieces) -> Pieces:
    return Pieces(*(a + b for a, b in zip(one, two, strict=True)))


def little_endian(numbers: array[float]) -> array[float]:
    """Numbers whose bytes are in the order of the files; or the same the other way."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def curve_files(curves: Mapping[str, Curve], marks: Curve) -> dict[str, bytes]:
    """Path in the run directory -> content; the index comes last. Empty without a curve.

    Args:
        curves: Metric -> its values by step.
        marks: Finished epochs by step.
    """
    if not curves:
        return {}
    index: dict[str, object] = {"version": _VERSION, "block": _NEW_BLOCK}
    stems: dict[str, str] = {}
    made: dict[str, bytes] = {}
    for place, (name, curve) in enumerate(curves.items()):
        stems[name] = f"{place}-0"
        made |= _curve(stems[name], curve.steps, curve.values)
    times = _times(curves)
    if times:
        index["time"] = "time-0"
        made |= _curve("time-0", list(times), list(times.values()))
    if marks.steps:
        index["epochs"] = "epochs-0"
        made |= _curve("epochs-0", marks.steps, marks.values)
    index["curves"] = stems
    made[f"{FOLDER}/{_INDEX}"] = (json.dumps(KNOWN.texts(index), indent=1) + "\n").encode()
    return made


def _times(curves: Mapping[str, Curve]) -> dict[int, float]:
    """Unix time by step, rising in both, of the curve with the most points."""
    longest = max(curves.values(), key=lambda curve: len(curve.steps))
    found: dict[int, float] = {}
    latest = -math.inf
    for step, time in zip(longest.steps, longest.times, strict=True):
        if math.isfinite(time) and time >= latest:
            found[step] = latest = time
    return found


def _curve(stem: str, steps: list[int], values: list[float]) -> dict[str, bytes]:
    """The file of a curve, and that of its whole blocks."""
    numbers = array("d", chain.from_iterable(zip(steps, values, strict=True)))
    made = {f"{FOLDER}/{stem}.f64": little_endian(numbers).tobytes()}
    whole = len(steps) // _NEW_BLOCK * _NEW_BLOCK
    blocks = _merged_with_gaps(
        of_values(list(map(float, steps[:whole])), values[:whole]), _NEW_BLOCK
    )
    ends = steps[:whole:_NEW_BLOCK], steps[_NEW_BLOCK - 1 : whole : _NEW_BLOCK]
    rows = array("d", chain.from_iterable(zip(*ends, *blocks[1:], strict=True)))
    if rows:
        made[f"{FOLDER}/{stem}.blocks.f64"] = little_endian(rows).tobytes()
    return made
