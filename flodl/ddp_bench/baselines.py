"""Baselines: results with which later runs are compared."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, final

from fdl.base.files import write_text
from flodl.ddp_bench.analyze import worse_by
from flodl.ddp_bench.records import RunRecord
from flodl.errors import DataError

TOLERANCE = 0.15
_ALONE = "solo-0"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """The result of one run, and its settings."""

    model: str
    mode: str
    loss: float
    eval: float
    epochs: int
    batches: int | None
    batch_size: int
    seed: int
    data: str = "real"

    @classmethod
    def of(cls, run: RunRecord) -> Self:
        """Make a baseline from a run."""
        return cls(
            model=run.model,
            mode=run.mode,
            loss=run.loss,
            eval=run.eval,
            epochs=int(run.config["epochs"]),
            batches=run.config["batches"],
            batch_size=int(run.config["batch_size"]),
            seed=run.seed,
            data=run.data,
        )

    def differences(self, other: Baseline) -> list[str]:
        """Return the settings in which two results differ, each with both values."""
        return [
            f"{name} {getattr(self, name)} instead of {getattr(other, name)}"
            for name in ("epochs", "batches", "batch_size", "seed", "data")
            if getattr(self, name) != getattr(other, name)
        ]


class Standing(StrEnum):
    """How a run compares with its baseline."""

    OK = "ok"
    WORSE = "WORSE"
    STALE = "STALE"
    """The baseline has other settings."""
    MISSING = "MISSING"


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """The comparison of one run with its baseline."""

    run: RunRecord
    standing: Standing
    text: str

    def line(self) -> str:
        """Return the comparison as one line."""
        return f"{self.standing:8}{self.run.model}/{self.run.mode}: {self.text}"


def read_baselines(path: Path) -> list[Baseline]:
    """Read a file of baselines; return an empty list if there is no file.

    Raises:
        DataError: The file cannot be read or is not a list of baselines.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    try:
        entries: list[dict[str, Any]] = json.loads(text)
        return [Baseline(**entry) for entry in entries]
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path}: not a list of baselines: {error}; write one with --save-baseline"
        ) from error


def save_baselines(path: Path, runs: Sequence[RunRecord]) -> int:
    """Save the results of runs to a file; results of other models, modes, data and seeds stay.

    Returns:
        Number of results in the file.

    Raises:
        DataError: A result is not finite, or the file is not a list of baselines.
    """
    kept = {_key(one): one for one in read_baselines(path)}
    for run in runs:
        if not (math.isfinite(run.loss) and math.isfinite(run.eval)):
            raise DataError(
                f"{run.model}/{run.mode}: loss {run.loss} and eval {run.eval} are not a baseline"
            )
        one = Baseline.of(run)
        kept[_key(one)] = one
    ordered = [asdict(kept[key]) for key in sorted(kept)]
    write_text(path, json.dumps(ordered, indent=1) + "\n")
    return len(ordered)


def _key(one: Baseline) -> tuple[str, str, str, int]:
    return one.model, one.mode, one.data, one.seed


def compare(
    runs: Sequence[RunRecord], baselines: Sequence[Baseline], *, tolerance: float = TOLERANCE
) -> list[Finding]:
    """Compare every run with the baseline of its model and mode, else with that of ``solo-0``.

    Args:
        runs: The runs.
        baselines: The baselines.
        tolerance: Fraction of the baseline's evaluation by which a run may be worse. A better run
            always passes.
    """
    return [_finding(run, baselines, tolerance) for run in runs]


def failures(findings: Sequence[Finding], *, allow_missing: bool = False) -> list[Finding]:
    """Return the findings that make a validation fail."""
    fine = {Standing.OK} | ({Standing.MISSING} if allow_missing else set())
    return [one for one in findings if one.standing not in fine]


def _finding(run: RunRecord, baselines: Sequence[Baseline], tolerance: float) -> Finding:
    mine = Baseline.of(run)
    known = [one for one in baselines if one.model == run.model]
    candidates = [one for one in known if one.mode == run.mode] or [
        one for one in known if one.mode == _ALONE
    ]
    if not candidates:
        return Finding(run, Standing.MISSING, "no baseline; keep one with --save-baseline")
    # Of several seeds or sources choose the one that fits best; else the first.
    base = min(candidates, key=lambda one: len(mine.differences(one)))
    if different := mine.differences(base):
        return Finding(
            run, Standing.STALE, f"the baseline is of other settings: {', '.join(different)}"
        )
    worse = worse_by(run.eval, base.eval, higher_is_better=run.higher_is_better)
    text = f"{run.metric} {run.eval:.4g}, baseline {base.eval:.4g} ({base.mode})"
    return Finding(run, Standing.WORSE if worse > tolerance else Standing.OK, text)
