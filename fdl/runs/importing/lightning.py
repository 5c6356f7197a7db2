"""CSV logs of Lightning: ``metrics.csv`` and ``hparams.yaml`` of a version."""

from __future__ import annotations

import csv
import math
import sys
from typing import TYPE_CHECKING

from fdl.runs.importing.foreign import Curve, Foreign, UnreadableRunError, moment, read_yaml

if TYPE_CHECKING:
    from pathlib import Path

METRICS = "metrics.csv"
HPARAMS_FILE = "hparams.yaml"
EPOCH, STEP = "epoch", "step"


def is_log(folder: Path) -> bool:
    """Whether a folder holds the CSV log of a version."""
    try:
        with (folder / METRICS).open(encoding="utf-8", errors="replace", newline="") as stream:
            heading = next(csv.reader(stream), [])
    except (OSError, csv.Error):
        return False
    return STEP in heading and (EPOCH in heading or (folder / HPARAMS_FILE).is_file())


def read(folder: Path, name: str) -> Foreign:
    """The run that a CSV log records.

    The log has no times and no end: the times of its files stand for them, and the run counts as
    complete.

    Raises:
        UnreadableRunError: A file cannot be read.
    """
    file = folder / METRICS
    try:
        changed = file.stat().st_mtime
        with file.open(encoding="utf-8", errors="replace", newline="") as stream:
            csv.field_size_limit(sys.maxsize)
            rows = list(csv.DictReader(stream))
    except (OSError, csv.Error) as problem:
        raise UnreadableRunError(f"{file} cannot be read: {problem}") from None
    beside = folder / HPARAMS_FILE
    has_settings = beside.is_file()
    began = min(beside.stat().st_mtime, changed) if has_settings else changed
    made = Foreign("lightning", folder, name, str(folder), moment(began))
    made.finished = moment(changed)
    if has_settings:
        made.config, made.origin = read_yaml(beside), str(beside)
    step = 0
    for row in rows:
        step = _whole(row.get(STEP), step)
        for column, cell in row.items():
            if column and column != STEP and isinstance(cell, str) and cell:
                value = _number(cell)
                if value is not None:
                    made.curves.setdefault(column, Curve()).add(step, value, math.nan)
    return made


def _whole(cell: str | None, before: int) -> int:
    value = _number(cell or "")
    return int(value) if value is not None and math.isfinite(value) else before


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
