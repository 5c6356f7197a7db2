"""``fdl runs import``: runs that other programs recorded, beside those of the project."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import FdlError, UsageError
from fdl.base.units import printable
from fdl.cli.commands.runs_group import counted, print_json, project_folders
from fdl.cli.commands.verb import DryRun, Group, Json, Verb
from fdl.runs.find import shortened

if TYPE_CHECKING:
    from fdl.runs.importing.foreign import Foreign


verbs = Group()


@verbs.command("import", cls=Verb)
def import_(
    ctx: typer.Context,
    path: Annotated[
        list[Path] | None,
        typer.Argument(help="TensorBoard event folders, MLflow stores, Lightning CSV logs"),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(help="Folder that receives the runs (default: `imported` in the runs folder)"),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Convert runs of TensorBoard, MLflow and Lightning to run directories.

    The files that are read stay as they are. A second import updates the same run directories;
    your tags and notes stay. A run is found by its path, one of MLflow by its id.

    Returns:
        0; 1 when a run could not be read.

    Raises:
        FdlError: A path holds no run of a known format, or the folder cannot be written.
    """
    from fdl.runs.importing.detect import runs
    from fdl.runs.importing.foreign import UnreadableRunError
    from fdl.runs.importing.write import Target

    if not path:
        raise UsageError("no path is named", hint="fdl runs import PATH")
    target = Target(into or project_folders(ctx.obj)[0] / "imported")
    done: list[tuple[Foreign, Path, str]] = []
    problems: list[FdlError] = []
    for one in runs(path):
        if isinstance(one, UnreadableRunError):
            problems.append(one)
            continue
        done.append((one, *target.put(one, dry_run=dry_run)))
        # The curves of thousands of runs need not stay in memory.
        one.curves = {}
    for run, _, _ in done:
        for warning in run.warnings:
            output.warning(warning)
    for problem in problems:
        output.error(problem.message, problem.hint)
    if json:
        print_json({"runs": [_document(*one) for one in done]})
    else:
        _print(done, dry_run=dry_run)
    return 1 if problems else 0


def _document(run: Foreign, path: Path, what: str) -> dict[str, object]:
    return {
        "name": path.name,
        "path": str(path),
        "format": run.format,
        "imported_from": str(run.path),
        "result": what,
    }


def _print(done: list[tuple[Foreign, Path, str]], *, dry_run: bool) -> None:
    from fdl.base.tables import table

    if not done:
        return
    rows = [
        (
            what,
            printable(str(shortened(path))),
            run.format,
            printable(str(shortened(run.path))),
        )
        for run, path, what in done
    ]
    output.show(table(rows))
    sys.stdout.flush()
    counts = {what: sum(one[2] == what for one in done) for what in ("new", "updated", "unchanged")}
    text = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    output.note(f"{counted(len(done))}: {text}{'; nothing was written' if dry_run else ''}")
