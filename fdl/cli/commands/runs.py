"""``fdl runs``: what trainings leave behind, and trainings that still run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base.errors import UsageError
from fdl.cli.commands.verb import Call, Complete, Group
from fdl.manifest.select.project import locate
from fdl.runs.find import choose, folders
from fdl.runs.quantity import Known
from fdl.runs.query import matches, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.runs.run import Run

verbs = Group(
    "runs",
    "List, compare, follow, act on, label, import and delete runs.",
    {
        "list": "runs_list",
        "show": "runs_look",
        "compare": "runs_look",
        "open": "runs_look",
        "tail": "runs_look",
        "verify": "runs_look",
        "ui": "runs_look",
        "diff": "runs_look",
        "import": "runs_write",
        "tag": "runs_write",
        "note": "runs_write",
        "rm": "runs_remove",
        "prune": "runs_remove",
        "tell": "runs_write",
    },
)


OneRun = Annotated[
    str,
    typer.Argument(help="last, best:METRIC, a name or its beginning, or a path"),
    Complete("runs"),
]
Places = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Runs or folders of runs (default: every `output.dir` of the manifest, else runs/)"
    ),
]
State = Annotated[
    str | None,
    typer.Option(
        help="Select runs in this state: running, complete, interrupted, diverged, failed or dead"
    ),
    Complete("run-states"),
]
Where = Annotated[
    str | None,
    typer.Option(help="Select runs that meet a condition: 'val_loss < 0.1 and lr >= 0.01'"),
    Complete("run-conditions"),
]


def chosen(call: Call, word: str) -> Run:
    """The run that a word means; an empty word means the newest one."""
    return choose(word or "last", project_folders(call))


def places(call: Call, named: Sequence[Path] | None) -> list[Path]:
    """The folders that were named, else those of the project.

    Raises:
        UsageError: One of them does not exist.
    """
    for place in named or ():
        if not place.is_dir():
            raise UsageError(f"{place} is not a folder", hint="name a run or a folder of runs")
    return list(named or ()) or project_folders(call)


def project_folders(call: Call) -> list[Path]:
    """The folders of runs of the project around here, or the usual one.

    Looking at runs is what people do between trainings, so the manifest is kept for the next time.
    """
    return folders(call.project(writes_cache=True) if locate() else None)


def only_where(condition: str | None, runs: list[Run]) -> list[Run]:
    """The runs that meet a condition; all of them without one.

    Raises:
        UsageError: It is not a condition, or has a name that no run knows.
    """
    if condition is None or not runs:
        return runs

    meant = parse(condition, Known(runs))
    return [run for run in runs if matches(meant, run)]
