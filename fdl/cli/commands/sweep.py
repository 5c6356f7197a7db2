"""``fdl sweep``: begin the sweeps of the manifest; list, look into and continue those that ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fdl.base import output
from fdl.base.units import duration
from fdl.cli.commands.verb import Complete, Context, DryRun, Group, Json, Verb, print_json
from fdl.manifest.select.project import Project
from fdl.run.sweeps import execute
from fdl.run.sweeps.execute import begin
from fdl.run.sweeps.request import Request, of_manifest
from fdl.run.sweeps.store import STATES, choose, find
from fdl.runs.describe import measured
from fdl.runs.find import shortened

if TYPE_CHECKING:
    from fdl.cli.commands.verb import Call
    from fdl.run.sweeps.store import Sweep

verbs = Group("sweep", "Run, list and continue sweeps: one command with many values.")

OneSweep = Annotated[
    str,
    typer.Argument(help="last, a name or its beginning, or a path"),
    Complete("sweeps"),
]


Retry = Annotated[
    Literal["failed"] | None, typer.Option("--retry", help="failed: also run the failed runs again")
]


@verbs.command("run", cls=Verb)
def run(
    ctx: Context,
    name: Annotated[
        str,
        typer.Argument(help="A name under `sweeps:` in the manifest"),
        Complete("manifest-sweeps"),
    ],
    dry_run: DryRun = False,
) -> int:
    """Run a sweep of the manifest. `fdl --jobs 4 sweep run NAME` runs four at the same time.

    Returns:
        0, or the exit code of the first run that failed.

    Raises:
        FdlError: There is no such sweep, or it is wrong.
    """
    call = ctx.obj
    project = call.project()
    request = of_manifest(project, name, call.invocation.work)
    as_json = call.invocation.json
    return begin(project, request, call.here(), dry_run=dry_run, as_json=as_json)


@verbs.command("resume", cls=Verb)
def resume(
    ctx: Context,
    name: OneSweep = "last",
    retry: Retry = None,
    dry_run: DryRun = False,
) -> int:
    """Continue a sweep that was interrupted. Runs that are done do not run again.

    Returns:
        0, or the exit code of the first run that failed; 1 if a run of before has failed.

    Raises:
        FdlError: There is no such sweep, or another process runs it.
    """
    return _continue(ctx.obj, name, [], 0, retry, dry_run=dry_run)


@verbs.command("extend", cls=Verb)
def extend(
    ctx: Context,
    name: OneSweep,
    each: Annotated[
        list[str] | None,
        typer.Option("--each", metavar="KEY=VALUES", help="More values of a setting of the sweep"),
    ] = None,
    trials: Annotated[
        int, typer.Option("--trials", min=0, help="Trials of a search, with those of before")
    ] = 0,
    retry: Retry = None,
    dry_run: DryRun = False,
) -> int:
    """Add values or trials to a sweep, and run what is missing. Results of before are kept.

    A search continues with what it has measured. With it, --each replaces the range of a setting.

    Returns:
        0, or the exit code of the first run that failed; 1 if a run of before has failed.

    Raises:
        FdlError: There is no such sweep, it has no such setting, or another process runs it.
    """
    more = [*ctx.obj.invocation.work.each, *(each or [])]
    return _continue(ctx.obj, name, more, trials, retry, dry_run=dry_run)


def _continue(
    call: Call, name: str, each: list[str], trials: int, retry: str | None, *, dry_run: bool
) -> int:
    project = call.project()
    sweep = choose(name, project)
    sweep.require_settings()
    project = Project(project.found, sweep.settings["env"], writes_cache=True)
    place = call.here().replaced(append=sweep.settings["append"])
    request = Request.of_record(sweep.settings, call.invocation.work).grown(each, trials)
    return execute.resume(sweep, project, request, place, failed=retry is not None, dry_run=dry_run)


@verbs.command("list", cls=Verb)
def list_(ctx: Context, json: Json = False) -> int:
    """List the sweeps, newest first.

    Raises:
        FdlError: There is no project, or its manifest is broken.
    """
    from fdl.base.tables import table

    sweeps = find(ctx.obj.project())
    if json:
        return print_json({"sweeps": [_as_json(one) for one in sweeps]})
    if not sweeps:
        output.note("there are no sweeps; `fdl COMMAND --each KEY=A,B` makes one")
        return 0
    rows = [
        (
            str(shortened(one.path)),
            " ".join(["fdl", *one.settings["command"]]),
            ", ".join(f"{one.count(state)} {state}" for state in STATES if one.count(state)),
        )
        for one in sweeps
    ]
    output.show(table(rows, ("SWEEP", "COMMAND", "RUNS"), wrap=(1,)))
    return 0


@verbs.command("show", cls=Verb)
def show(ctx: Context, name: OneSweep = "last", json: Json = False) -> int:
    """Show the runs of a sweep with their states and last metrics.

    Raises:
        FdlError: The word means no sweep.
    """
    from fdl.base.tables import table

    sweep = choose(name, ctx.obj.project())
    if json:
        return print_json(_as_json(sweep))
    runs = sweep.runs()
    rows = [
        (
            one.name,
            one.state,
            "" if one.code is None else str(one.code),
            duration(one.seconds) if one.seconds else "",
            measured(runs[one.name].last_metrics) if one.name in runs else "",
        )
        for one in sweep.rows
    ]
    heads = ("RUN", "STATE", "EXIT CODE", "TIME", "LAST")
    output.show(table(rows, heads, right=(2, 3), wrap=(4,)))
    return 0


def _as_json(sweep: Sweep) -> dict[str, object]:
    runs = sweep.runs()
    rows = [
        {**vars(row), "path": str(runs[row.name].path) if row.name in runs else None}
        for row in sweep.rows
    ]
    return {"name": sweep.name, "path": str(sweep.path), **sweep.settings, "runs": rows}
