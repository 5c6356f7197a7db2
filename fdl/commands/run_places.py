"""The folders of runs that the commands of ``fdl runs`` look into."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.errors import UsageError
from fdl.run_directory.find import folders

if TYPE_CHECKING:
    from fdl.commands.verb import Call

Places = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Runs or folders of runs (default: every `output.dir` of the manifest, else runs/)"
    ),
]


def places(call: Call, named: list[Path] | None) -> list[Path]:
    """The folders that were named, else those of the project.

    Raises:
        UsageError: One of them does not exist.
    """
    for place in named or ():
        if not place.is_dir():
            raise UsageError(f"{place} is not a folder", hint="name a run or a folder of runs")
    return named or folders_of(call)


def folders_of(call: Call) -> list[Path]:
    """The folders of runs of the project around here, or the usual one."""
    from fdl.select.project import locate

    return folders(call.project() if locate() else None)
