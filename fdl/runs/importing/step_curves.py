"""The folder ``steps`` of an imported run: its curves by step.

The format is that of flodl's own runs. All numbers are doubles, little-endian. ``NAME.f64`` holds
step and value of each point. ``NAME.blocks.f64`` holds six numbers for each full block of points:
first and last step, lowest and highest finite value, their mean, and how many values are not
finite. ``index.json`` names the files of each curve, and those of Unix time and of finished epochs.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from typing import TYPE_CHECKING

from fdl.base.masking import KNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdl.runs.importing.foreign import Curve

FOLDER = "steps"
INDEX = f"{FOLDER}/index.json"

_VERSION = 1
_BLOCK = 128


def files(curves: Mapping[str, Curve], marks: Curve) -> dict[str, bytes]:
    """Path in the run directory -> content; the index comes last. Empty without a curve.

    Args:
        curves: Metric -> its values by step.
        marks: Finished epochs by step.
    """
    if not curves:
        return {}
    index: dict[str, object] = {"version": _VERSION, "block": _BLOCK}
    stems: dict[str, str] = {}
    made: dict[str, bytes] = {}
    for place, (name, curve) in enumerate(curves.items()):
        stems[name] = f"{place}-0"
        made |= _files(stems[name], curve.steps, curve.values)
    times = _times(curves)
    if times:
        index["time"] = "time-0"
        made |= _files("time-0", list(times), list(times.values()))
    if marks.steps:
        index["epochs"] = "epochs-0"
        made |= _files("epochs-0", marks.steps, marks.values)
    index["curves"] = stems
    made[INDEX] = (json.dumps(KNOWN.texts(index), indent=1) + "\n").encode()
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


def _files(stem: str, steps: list[int], values: list[float]) -> dict[str, bytes]:
    numbers = array("d")
    for pair in zip(steps, values, strict=True):
        numbers.extend(pair)
    made = {f"{FOLDER}/{stem}.f64": _bytes(numbers)}
    rows = array("d")
    for start in range(0, len(steps) - _BLOCK + 1, _BLOCK):
        block = slice(start, start + _BLOCK)
        finite = [value for value in values[block] if math.isfinite(value)]
        low, high = (min(finite), max(finite)) if finite else (math.nan, math.nan)
        mean = math.fsum(finite) / len(finite) if finite else math.nan
        first, last = steps[start], steps[start + _BLOCK - 1]
        rows.extend((first, last, low, high, mean, _BLOCK - len(finite)))
    if rows:
        made[f"{FOLDER}/{stem}.blocks.f64"] = _bytes(rows)
    return made


def _bytes(numbers: array[float]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
