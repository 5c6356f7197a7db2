"""One run as the page shows it: a row of a table."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any

from fdl.base.run_record import METRIC_LINES
from fdl.base.units import in_json
from fdl.runs.describe import environment_to_compare
from fdl.runs.find import shortened
from fdl.runs.metrics import Metric
from fdl.runs.run import CONFIG, ENVIRONMENT, METRICS, NOTES, RECORD, REPORT
from fdl.runs.step_files import FOLDER, StepFiles

if TYPE_CHECKING:
    from pathlib import Path

    from fdl.runs.run import Run

READ = (
    RECORD,
    CONFIG,
    ENVIRONMENT,
    METRICS,
    METRIC_LINES,
    "metrics.json",
    NOTES,
    REPORT,
    f"{FOLDER}/index.json",
)
"""The files that a row is made of."""

PAGE = "page"
"""The folder of a run from which its own page is served."""

_LONGEST_TEXT = 2000


def signature(path: Path) -> str:
    """Times and sizes of all files that a row is made of; changes when one of them does."""
    folder = os.fspath(path)
    return " ".join(mark(f"{folder}{os.sep}{name}") for name in READ)


def mark(file: str) -> str:
    """Time and size of a file; empty if it is missing."""
    try:
        # A page of 10,000 runs asks 80,000 times, and objects of `Path` take most of that time.
        found = os.stat(file)  # noqa: PTH116
    except OSError:
        return ""
    return f"{found.st_mtime_ns}:{found.st_size}"


def listed(run: Run) -> dict[str, Any]:
    """A row as far as the record of a run says it, without its other files."""
    epochs = run.record.get("epochs")
    return {
        "name": run.name,
        "title": run.title,
        "started": run.record["started"],
        "finished": run.finished.isoformat() if run.finished else None,
        "imported_from": run.imported_from,
        "epochs": epochs if isinstance(epochs, int) else 0,
        "resumed_from": run.resumed_from,
        "error": run.error[:_LONGEST_TEXT],
        "tags": [],
        "note": "",
        "has_report": False,
        "has_page": False,
        "config": {},
        "environment": {},
        "metrics": {},
        "has_steps": False,
        "curves": [],
    }


def row(run: Run) -> dict[str, Any]:
    """The files of a run as JSON data; nan and infinities are text, secrets are left out."""
    steps = StepFiles.read(run.path)
    return {
        **listed(run),
        "epochs": run.epochs,
        "tags": list(run.notes.tags),
        "note": run.notes.note[:_LONGEST_TEXT],
        "has_report": (run.path / REPORT).is_file(),
        "has_page": (run.path / PAGE / "records.jsonl").is_file(),
        "config": {name: (_short(one.value), one.origin) for name, one in run.settings.items()},
        "environment": {name: _short(value) for name, value in environment_to_compare(run).items()},
        "metrics": _measured(run),
        "has_steps": bool(steps.names) or bool(run.metrics.steps),
        "curves": [*dict.fromkeys([*run.metrics.names, *steps.names])],
    }


def moment(run: Run) -> dict[str, Any]:
    """What depends on the moment and on the working directory, not only on the files of a run."""
    return {"state": run.state, "seconds": run.seconds, "path": str(shortened(run.path))}


def _measured(run: Run) -> dict[str, dict[str, Any]]:
    """What the page shows of each metric, and what its filter compares.

    ``last`` is the value of the last epoch, ``latest`` the last one that was measured. They are the
    same for a run that has steps. ``epoch`` is that of the best value, and ``higher`` says which
    direction is better.
    """
    last, latest = run.last_metrics, run.metrics.latest()
    found = {}
    for name in run.metrics.names:
        metric = Metric.parse(name)
        least, most = (run.metrics.best(Metric(name, higher)) for higher in (False, True))
        best = most if metric.higher else least
        found[name] = {
            "last": _cell(last.get(name)),
            "latest": _cell(latest.get(name)),
            "best": _cell(best.value) if best else None,
            "min": _cell(least.value) if least else None,
            "max": _cell(most.value) if most else None,
            "epoch": best.epoch if best and math.isfinite(best.value) else None,
            "higher": metric.higher,
        }
    return found


def _short(value: object) -> object:
    """A value for one cell."""
    if isinstance(value, float):
        return in_json(value)
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, bool | int) or value is None:
        return value
    return json.dumps(value, ensure_ascii=False)[:_LONGEST_TEXT]


def _cell(value: float | None) -> float | str | None:
    return None if value is None else in_json(value)
