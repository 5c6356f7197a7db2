"""Curves in the resolution of a screen, over steps, epochs or time."""

from __future__ import annotations

import json
import math
from array import array
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from fdl.runs.step_files import Line, Pieces, StepFiles, little_endian, merged, of_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.runs.pages.catalog import Entry

Axis: TypeAlias = Literal["step", "epoch", "time", "wall"]
"""What a curve is drawn over: optimizer steps, epochs, seconds since the start, Unix time."""


class Request(NamedTuple):
    """What a page wants to draw.

    Attributes:
        metric: The name of the curves.
        axis: What they are drawn over.
        pieces: Pieces per curve, at most about this many.
        first: The left end of the visible range, in units of the axis.
        last: The right end.
    """

    metric: str
    axis: Axis = "step"
    pieces: int = 1000
    first: float = -math.inf
    last: float = math.inf


def curve(entry: Entry, request: Request) -> Pieces:
    """One curve; its column ``steps`` holds positions on the axis.

    A metric may exist for every step and for every epoch. Over epochs, the values by epoch are
    drawn, else the values by step.
    """
    files = StepFiles.read(entry.path)
    by_epoch = request.metric in entry.row["metrics"]
    if request.metric in files.names and not (request.axis == "epoch" and by_epoch):
        return _by_step(files, request)
    # The table may have changed since the row was made.
    if not by_epoch or request.metric not in entry.metrics.names:
        return Pieces([], [], [], [], [])
    return _by_epoch(entry, files, request)


def packed(entries: Sequence[Entry], request: Request, *, band: bool) -> bytes:
    """Curves as one block of bytes.

    It begins with the length of a JSON head (four bytes, little-endian) and the head itself, padded
    to a multiple of eight. The head lists for each curve its run, the number of pieces, and the
    positions of values that are not finite. Doubles follow: for each curve its positions and means,
    and with ``band`` also its lowest and highest values.
    """
    head, body = [], array("d")
    for entry in entries:
        pieces = curve(entry, request)
        at = pieces.steps
        gaps = [x for x, broken in zip(at, pieces.broken, strict=True) if broken]
        head.append((entry.id, len(at), gaps))
        columns = (at, pieces.mean, pieces.low, pieces.high) if band else (at, pieces.mean)
        for column in columns:
            body.fromlist(column)
    text = json.dumps(head).encode()
    text += b" " * (-(4 + len(text)) % 8)
    return len(text).to_bytes(4, "little") + text + little_endian(body).tobytes()


def _by_step(files: StepFiles, request: Request) -> Pieces:
    """A curve of steps; on another axis than steps, the range and the positions are translated."""
    if request.axis == "step":
        return files.pieces(request.metric, request.pieces, request.first, request.last)
    line = _axis_line(files, request.axis)
    if not line:
        return Pieces([], [], [], [], [])
    first, last = line.flipped().read([request.first, request.last])
    pieces = files.pieces(
        request.metric,
        request.pieces,
        -math.inf if math.isnan(first) else first,
        math.inf if math.isnan(last) else last,
    )
    return _placed(pieces, line.read(pieces.steps))


def _axis_line(files: StepFiles, axis: Axis) -> Line:
    """Positions on an axis by step."""
    if axis == "epoch":
        epochs = files.epochs()
        # An epoch ends with its last step; the first one of a run began with step 0.
        return Line([0.0, *epochs.at], [epochs.values[0] - 1, *epochs.values]) if epochs else epochs
    seconds = files.seconds()
    if axis == "wall" or not seconds:
        return seconds
    return Line(seconds.at, [value - seconds.values[0] for value in seconds.values])


def _by_epoch(entry: Entry, files: StepFiles, request: Request) -> Pieces:
    epochs = [float(epoch) for epoch, _ in entry.metrics.rows]
    positions = _epoch_positions(entry, files, request.axis, epochs)
    # A cell without a value or without a position has no point.
    points = [
        (at, row[request.metric])
        for at, (_, row) in zip(positions, entry.metrics.rows, strict=True)
        if request.metric in row and not math.isnan(at)
    ]
    made = of_values([at for at, _ in points], [value for _, value in points])
    return merged(made, request.pieces)


def _epoch_positions(
    entry: Entry, files: StepFiles, axis: Axis, epochs: list[float]
) -> list[float]:
    """The position of the end of each epoch on an axis; nan where it is not known."""
    if axis == "epoch":
        return epochs
    marks = files.epochs()
    if axis == "step":
        if len(entry.metrics.steps) == len(epochs):
            return list(entry.metrics.steps)
        return marks.flipped().read(epochs)
    line = _axis_line(files, axis)
    if line and marks:
        return line.read(marks.flipped().read(epochs))
    seconds = [0.0 if math.isnan(one) else one for one in entry.metrics.seconds()]
    if len(seconds) != len(epochs):
        return [math.nan] * len(epochs)
    ends = list(accumulate(seconds))
    if axis == "time":
        return ends
    started = datetime.fromisoformat(entry.row["started"]).timestamp()
    return [started + end for end in ends]


def _placed(pieces: Pieces, positions: list[float]) -> Pieces:
    """Pieces at other positions, without those whose position is not known."""
    kept = [place for place, at in enumerate(positions) if not math.isnan(at)]
    if len(kept) == len(positions):
        return pieces._replace(steps=positions)
    columns = (positions, *pieces[1:])
    return Pieces(*([column[one] for one in kept] for column in columns))
