"""Equally spaced batches, which a trace keeps as one record."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from fdl.base.step_trace import TraceFile


@final
class Stretch:
    """Equally spaced batches of one rank.

    Args:
        number: Number of the first of them in the session.
        epoch: Counted from 0.
        step: The step of the first of them, counted from 1.
        start: Place of its first sample in the order of the epoch.
        size: Samples of each batch.
        parts: Batches of each step.
    """

    def __init__(
        self, number: int, epoch: int, step: int, start: int, size: int, parts: int
    ) -> None:
        self._number, self._epoch, self._step = number, epoch, step
        self._start, self._size, self._parts = start, size, parts
        self._stride, self._count = size, 1

    def takes(self, epoch: int, step: int, start: int, size: int, parts: int) -> bool:
        """Add the next batch; return False if it does not fit."""
        gap = start - (self._start + (self._count - 1) * self._stride)
        fits = (
            (epoch, size, parts) == (self._epoch, self._size, self._parts)
            and step == self._step + self._count // parts
            and (gap == self._stride or (self._count == 1 and gap > 0))
        )
        if fits:
            self._stride = gap
            self._count += 1
        return fits

    def write(self, file: TraceFile) -> None:
        """Write it as one record."""
        file.batches(
            self._number,
            self._epoch,
            self._step,
            self._start,
            self._size,
            stride=self._stride,
            count=self._count,
            parts=self._parts,
        )
