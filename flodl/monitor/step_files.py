"""The step curves of a run as files, so that other programs can draw them.

The folder has an index, and one or two files per curve. All numbers are doubles, little-endian:

- ``1-0.f64`` holds the points of a curve, two numbers each: step and value.
- ``1-0.blocks.f64`` holds six numbers for each full block of :data:`BLOCK` points: first and last
  step, lowest and highest finite value, their mean, and how many values are not finite.
- ``index.json`` names the files of each curve. ``time`` names a curve of Unix time by step, and
  ``epochs`` one of finished epochs by step.

Steps count from 1. A reader that needs only an overview reads the blocks and the points after the
last full block. Files only grow. A curve that is thinned gets new files, and then a new index.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from fdl.base.files import append_bytes, replace_text
from fdl.base.own_files import is_name
from flodl.monitor.records import EpochRecord, Finish, RunInfo, StepSeries
from flodl.monitor.series import Values, as_steps, thinned

VERSION = 1
BLOCK = 128
"""Points of a block."""

LIMIT = 2**17
"""Points on the disk per curve, 16 bytes each; a longer curve is thinned to half of them."""

_FORMAT = "<f8"
_POINT, _ROW = 2, 6
_NO_POINTS: Values = np.empty((0, _POINT))
_TIME, _EPOCHS = "time", "epochs"


@final
class StepFilesSink:
    """Writes step curves into a folder; the module says in which format.

    Only the time of a piece is known: that of the monitor, or else that of its arrival. The steps
    between two pieces are spread evenly. A folder
    with curves is continued. A step that is trained again replaces the old end of its curve.

    Args:
        folder: Folder to write; created with the first curve.
        limit: Points per curve on the disk, at least twice :data:`BLOCK`.
        clock: Unix time in seconds.
    """

    flush_seconds = 1.0

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        limit: int = LIMIT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = Path(folder)
        self._limit = max(2 * BLOCK, limit)
        self._clock = clock
        self._curves: dict[str, _CurveFile] = {}
        self._marks: dict[str, _CurveFile] = {}
        self._opened: float | None = None
        self._stale = True

    def __str__(self) -> str:
        return str(self._folder)

    def open(self, info: RunInfo) -> None:
        """Note when the run began; read the index of a folder that is continued."""
        if self._opened is None:
            self._opened = info.started.timestamp()
            self._continue_folder()

    def record(self, record: EpochRecord) -> None:
        """Keep how many steps an epoch ended with."""
        if record.steps_done is not None:
            self._extend(self._marks, _EPOCHS, [record.steps_done], [record.epoch + 1.0])

    def steps(self, series: Sequence[StepSeries]) -> None:
        """Keep pieces of curves for the next flush."""
        pieces = [piece for piece in series if len(piece.steps)]
        if not pieces:
            return
        if _TIME not in self._marks:
            begins = min(piece.steps[0] for piece in pieces)
            opened = self._clock() if self._opened is None else self._opened
            self._extend(self._marks, _TIME, [begins], [opened])
        self._extend(self._marks, _TIME, *self._moments(pieces))
        for piece in pieces:
            # Steps of a series count from 0, those of the files from 1.
            self._extend(self._curves, piece.name, as_steps(piece.steps) + 1, piece.values)

    def flush(self) -> None:
        """Append the kept points; write the index if a file has another name now."""
        if not self._curves:
            return
        self._folder.mkdir(exist_ok=True)
        outdated: list[Path] = []
        for curve in (*self._marks.values(), *self._curves.values()):
            outdated += curve.flush(self._limit)
        if outdated or self._stale:
            replace_text(self._folder / "index.json", json.dumps(self._index(), indent=1) + "\n")
            self._stale = False
        for file in outdated:
            file.unlink(missing_ok=True)

    def finish(self, summary: Finish) -> None:  # noqa: ARG002 - only measurements are written
        """Append the rest."""
        self.flush()

    def _moments(self, pieces: Sequence[StepSeries]) -> tuple[list[int], list[float]]:
        """Steps from 1, and when they were done."""
        if self._opened is None or not (clock := pieces[0].clock)[0]:
            return [max(piece.steps[-1] for piece in pieces) + 1], [self._clock()]
        return [step + 1 for step in clock[0]], [self._opened + after for after in clock[1]]

    def _extend(
        self, files: dict[str, _CurveFile], name: str, steps: Any, values: Sequence[float]
    ) -> None:
        if name not in files:
            number = len(self._marks) + len(self._curves)
            base = name if files is self._marks else str(number)
            files[name] = _CurveFile(self._folder, base)
            self._stale = True
        files[name].extend(np.asarray(steps, float), np.asarray(values, float))

    def _index(self) -> dict[str, Any]:
        curves = {name: curve.stem for name, curve in self._curves.items()}
        marks = {name: curve.stem for name, curve in self._marks.items()}
        return {"version": VERSION, "block": BLOCK, "curves": curves, **marks}

    def _continue_folder(self) -> None:
        """Take up the curves of the folder; a damaged folder is begun again."""
        try:
            index = json.loads((self._folder / "index.json").read_text(encoding="utf-8"))
            curves = dict(index["curves"])
            marks = {name: index[name] for name in (_TIME, _EPOCHS) if name in index}
            if all(map(is_name, [*curves.values(), *marks.values()])):
                self._curves, self._marks = (
                    {name: _CurveFile.continued(self._folder, stem) for name, stem in one.items()}
                    for one in (curves, marks)
                )
        except (OSError, ValueError, KeyError, TypeError):
            return


class _CurveFile:
    """The files of one curve, and the points that are not in them yet."""

    def __init__(self, folder: Path, base: str) -> None:
        self._folder, self._base, self._generation = folder, base, 0
        self._continues = False
        self._outdated: list[Path] = []
        self._begin(_NO_POINTS)

    @classmethod
    def continued(cls, folder: Path, stem: str) -> _CurveFile:
        base, _, generation = stem.rpartition("-")
        made = cls(folder, base)
        made._generation, made._written = int(generation), True
        points = made._read()
        if made._is_whole(len(points)):
            made._begin(points, written=True)
        else:
            made._renew(points)
        made._continues = True
        return made

    @property
    def stem(self) -> str:
        """The name of the file with the points, without its ending."""
        return f"{self._base}-{self._generation}"

    def _begin(self, points: Values, *, written: bool = False) -> None:
        """Take these points as all there are, in the files or for the next flush."""
        self._written = written
        self._pending: list[Values] = [] if written else [points]
        self._open_block = points[len(points) // BLOCK * BLOCK :] if written else _NO_POINTS
        self._last = float(points[-1, 0]) if len(points) else -1.0
        self.count = len(points)

    def _renew(self, points: Values) -> None:
        """Let new files with these points take the place of those that are there."""
        self._outdated += [self._points, self._blocks]
        self._generation += 1
        self._begin(points)

    def extend(self, steps: Values, values: Values) -> None:
        if self._continues and steps[0] <= self._last:
            # A restart trains these steps again, from an older checkpoint.
            points = self._read()
            self._renew(points[points[:, 0] < steps[0]])
        self._continues = False
        fresh = np.stack([steps, values], axis=1)[steps > self._last]
        if len(fresh):
            self._pending.append(fresh)
            self._last = fresh[-1, 0]
            self.count += len(fresh)

    def flush(self, limit: int) -> list[Path]:
        """Write the points; return files that no index names once it is written again."""
        if self.count > limit:
            points = self._read()
            steps, values = thinned(points[:, 0].astype(np.int64), points[:, 1], limit // 2)
            self._renew(np.stack([steps.astype(float), values], axis=1))
        self._append(np.concatenate([_NO_POINTS, *self._pending]))
        self._pending.clear()
        outdated, self._outdated = self._outdated, []
        return outdated

    @property
    def _points(self) -> Path:
        return self._folder / f"{self.stem}.f64"

    @property
    def _blocks(self) -> Path:
        return self._folder / f"{self.stem}.blocks.f64"

    def _read(self) -> Values:
        """All points; half a point at the end of the file is what a crash left."""
        numbers: Values = np.fromfile(self._points, _FORMAT) if self._written else np.empty(0)
        whole = numbers[: len(numbers) // _POINT * _POINT].reshape(-1, _POINT)
        return np.concatenate([whole, *self._pending])

    def _is_whole(self, points: int) -> bool:
        """Whether both files end where their last point and block end."""
        rows = self._blocks.stat().st_size if self._blocks.exists() else 0
        sizes = self._points.stat().st_size, rows
        return sizes == (points * _POINT * 8, points // BLOCK * _ROW * 8)

    def _append(self, points: Values) -> None:
        if not self._written:
            self._points.write_bytes(b"")
            self._blocks.unlink(missing_ok=True)
            self._written = True
        if not len(points):
            return
        append_bytes(self._points, points.astype(_FORMAT).tobytes())
        unblocked = np.concatenate([self._open_block, points])
        full = len(unblocked) // BLOCK
        if full:
            self._blocks.touch()
            rows = block_rows(unblocked[: full * BLOCK])
            append_bytes(self._blocks, rows.astype(_FORMAT).tobytes())
        self._open_block = unblocked[full * BLOCK :]


def block_rows(points: Values) -> Values:
    """Return the rows of the file of blocks.

    Args:
        points: Steps and values, shape ``[n * BLOCK, 2]``.

    Returns:
        Shape ``[n, 6]``. Lowest, highest and mean of a block without a finite value are nan.
    """
    steps, values = points.reshape(-1, BLOCK, _POINT).transpose(2, 0, 1)
    finite = np.isfinite(values)
    count = finite.sum(axis=1)
    none = count == 0
    low = np.where(finite, values, np.inf).min(axis=1)
    high = np.where(finite, values, -np.inf).max(axis=1)
    mean = np.where(finite, values, 0.0).sum(axis=1) / np.maximum(count, 1)
    columns = [np.where(none, np.nan, column) for column in (low, high, mean)]
    return np.stack([steps[:, 0], steps[:, -1], *columns, BLOCK - count], axis=1)
