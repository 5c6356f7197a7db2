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
import numpy.typing as npt

from fdl.base.files import append_bytes, replace_text
from flodl.monitor.records import EpochRecord, Finish, RunInfo, StepSeries
from flodl.monitor.series import thinned

VERSION = 1
BLOCK = 128
"""Points of a block."""

LIMIT = 2**17
"""Points on the disk per curve, 16 bytes each; a longer curve is thinned to half of them."""

_FORMAT = "<f8"
_POINT, _ROW = 2, 6
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
        self._files: dict[tuple[str, str], _CurveFile] = {}
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
            self._extend(_EPOCHS, "", [record.steps_done], [record.epoch + 1.0])

    def steps(self, series: Sequence[StepSeries]) -> None:
        """Keep pieces of curves for the next flush."""
        begins = min((piece.steps[0] for piece in series if len(piece.steps)), default=None)
        if begins is None:
            return
        ends = max(piece.steps[-1] for piece in series if len(piece.steps)) + 1
        if not self._curve(_TIME, "").count:
            self._extend(
                _TIME, "", [begins], [self._clock() if self._opened is None else self._opened]
            )
        self._extend(_TIME, "", *self._moments(series, ends))
        for piece in series:
            if len(piece.steps):
                self._extend("curve", piece.name, _counted(piece.steps), piece.values)

    def flush(self) -> None:
        """Append the kept points; write the index if a file has another name now."""
        if not any(curve.count for kind, curve in self._by_kind() if kind != _EPOCHS):
            return
        self._folder.mkdir(exist_ok=True)
        outdated: list[Path] = []
        for _, curve in self._by_kind():
            outdated += curve.flush(self._limit)
        if outdated or self._stale:
            replace_text(self._folder / "index.json", json.dumps(self._index(), indent=1) + "\n")
            self._stale = False
        for file in outdated:
            file.unlink(missing_ok=True)

    def finish(self, summary: Finish) -> None:  # noqa: ARG002 - only measurements are written
        """Append the rest."""
        self.flush()

    def _moments(self, series: Sequence[StepSeries], ends: int) -> tuple[list[int], list[float]]:
        """Steps from 1, and when they were done."""
        if self._opened is None or not (clock := series[0].clock)[0]:
            return [ends], [self._clock()]
        return [step + 1 for step in clock[0]], [self._opened + after for after in clock[1]]

    def _by_kind(self) -> list[tuple[str, _CurveFile]]:
        return [(kind, curve) for (kind, _), curve in self._files.items()]

    def _extend(self, kind: str, name: str, steps: Sequence[int], values: Sequence[float]) -> None:
        at, measured = np.asarray(steps, float), np.asarray(values, float)
        self._curve(kind, name).extend(at, measured)

    def _curve(self, kind: str, name: str) -> _CurveFile:
        key = kind, name
        if key not in self._files:
            stem = kind if kind != "curve" else str(len(self._files))
            self._files[key] = _CurveFile(self._folder, stem)
            self._stale = True
        return self._files[key]

    def _index(self) -> dict[str, Any]:
        written: dict[str, Any] = {"version": VERSION, "block": BLOCK, "curves": {}}
        for (kind, name), curve in self._files.items():
            if kind == "curve":
                written["curves"][name] = curve.stem
            else:
                written[kind] = curve.stem
        return written

    def _continue_folder(self) -> None:
        try:
            index = json.loads((self._folder / "index.json").read_text(encoding="utf-8"))
            stems = [("curve", name, stem) for name, stem in index["curves"].items()]
            stems += [(kind, "", index[kind]) for kind in (_TIME, _EPOCHS) if kind in index]
        except (OSError, ValueError, KeyError, AttributeError):
            return
        for kind, name, stem in stems:
            self._files[kind, name] = _CurveFile.continued(self._folder, str(stem))


class _CurveFile:
    """The files of one curve, and the points that are not in them yet."""

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder = folder
        self._base, self._generation = stem, 0
        self._pending: list[npt.NDArray[np.float64]] = []
        self._open_block: npt.NDArray[np.float64] = np.empty((0, _POINT))
        self._last = -1.0
        self._written = False
        self._rewritten: npt.NDArray[np.float64] | None = None
        self._continues = False
        self.count = 0

    @classmethod
    def continued(cls, folder: Path, stem: str) -> _CurveFile:
        base, _, generation = stem.rpartition("-")
        made = cls(folder, base)
        made._generation = int(generation)
        made._written = made._continues = True
        points = made._read()
        made._last = points[-1, 0] if len(points) else -1.0
        made._open_block = points[len(points) // BLOCK * BLOCK :]
        made.count = len(points)
        if not made._is_whole(len(points)):
            made._rewritten = points
        return made

    @property
    def stem(self) -> str:
        """The name of the file with the points, without its ending."""
        return f"{self._base}-{self._generation}"

    def extend(self, steps: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> None:
        if self._continues and steps[0] <= self._last:
            # A restart trains these steps again, from an older checkpoint.
            points = self._read()
            self._rewritten = points[points[:, 0] < steps[0]]
            self.count = len(self._rewritten)
            self._last = self._rewritten[-1, 0] if self.count else -1.0
        self._continues = False
        fresh = np.stack([steps, values], axis=1)[steps > self._last]
        if len(fresh):
            self._pending.append(fresh)
            self._last = fresh[-1, 0]
            self.count += len(fresh)

    def flush(self, limit: int) -> list[Path]:
        """Write the points; return files that no index names once it is written again."""
        points = np.concatenate([np.empty((0, _POINT)), *self._pending])
        self._pending.clear()
        old = self._rewritten
        if old is None and self.count <= limit:
            self._append(points)
            return []
        whole = np.concatenate([self._read() if old is None else old, points])
        if len(whole) > limit:
            keys, values = thinned(whole[:, 0].astype(np.int64), whole[:, 1], limit // 2)
            whole = np.stack([keys.astype(float), values], axis=1)
        outdated = [self._points, self._blocks] if self._written else []
        self._generation += 1
        self._rewritten, self._written = None, False
        self._open_block, self.count = np.empty((0, _POINT)), len(whole)
        self._append(whole)
        return outdated

    @property
    def _points(self) -> Path:
        return self._folder / f"{self.stem}.f64"

    @property
    def _blocks(self) -> Path:
        return self._folder / f"{self.stem}.blocks.f64"

    def _read(self) -> npt.NDArray[np.float64]:
        """The points in the file; half a point at its end is what a crash left."""
        numbers: npt.NDArray[np.float64] = np.fromfile(self._points, _FORMAT)
        return numbers[: len(numbers) // _POINT * _POINT].reshape(-1, _POINT)

    def _is_whole(self, points: int) -> bool:
        """Whether both files end where their last point and block end."""
        rows = self._blocks.stat().st_size if self._blocks.exists() else 0
        sizes = self._points.stat().st_size, rows
        return sizes == (points * _POINT * 8, points // BLOCK * _ROW * 8)

    def _append(self, points: npt.NDArray[np.float64]) -> None:
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


def block_rows(points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
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


def _counted(steps: Sequence[int]) -> Sequence[int]:
    """Steps of a series count from 0, those of the files from 1."""
    if isinstance(steps, range):
        return range(steps.start + 1, steps.stop + 1, steps.step)
    return [step + 1 for step in steps]
