"""``fdl runs rm``, ``clean`` and ``prune``: delete runs and checkpoints."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import FdlError, UsageError
from fdl.cli.commands.runs_group import (
    Places,
    State,
    Yes,
    agreed,
    counted,
    list_sizes,
    places,
    project_folders,
    remove_all,
)
from fdl.cli.commands.verb import Complete, DryRun, Group, Verb
from fdl.runs.find import choose, search, shortened
from fdl.runs.prune import Rule, continued_by
from fdl.runs.run import RUNNING

if TYPE_CHECKING:
    from fdl.runs.run import Run

verbs = Group()

Keep = Annotated[int | None, typer.Option(help="Keep the newest N runs of each folder")]
OlderThan = Annotated[str | None, typer.Option(help="Select runs older than this: 30d, 12h, 2w")]


@verbs.command("rm", cls=Verb)
def rm(
    ctx: typer.Context,
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="The runs, named as in `fdl runs show`"),
        Complete("runs"),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Delete the named runs, after listing them with their sizes and asking.

    A running run is refused. The list names the runs that were resumed from one of them.

    Returns:
        0; 1 when nobody agreed.

    Raises:
        FdlError: A word means no run, a run is running, or one cannot be removed.
    """
    if not runs:
        raise UsageError("no run is named", hint="fdl runs rm NAME")
    searched = project_folders(ctx.obj)
    found: dict[str, Run] = {}
    for word in runs:
        run = choose(word, searched)
        if run.state == RUNNING:
            raise FdlError(
                f"{shortened(run.path)} is running and is not removed",
                hint="stop it first, for instance with Ctrl-C",
            )
        if run.is_linked:
            raise FdlError(
                f"{shortened(run.path)} is a link to {run.path.resolve()}",
                hint="name the run itself, or remove the link",
            )
        found[str(run.path.resolve())] = run
    named = list(found.values())
    every = search([*searched, *{run.path.parent for run in named}])
    remarks = []
    for run in named:
        names = ", ".join(one.name for one in continued_by(run, every))
        remarks.append(f"resumed by {names}" if names else "")
    return delete(named, remarks, yes=yes, dry_run=dry_run)


def delete(runs: list[Run], remarks: list[str], *, yes: bool, dry_run: bool) -> int:
    """Delete runs, after listing them and asking; 1 if nobody agreed or one stays."""
    list_sizes(runs, remarks)
    if dry_run:
        return 0
    if not yes and not agreed(f"remove {counted(len(runs))}?"):
        output.note("nothing was removed; --yes removes without asking")
        return 1
    return remove_all(runs)


@verbs.command("clean", cls=Verb)
def clean(
    ctx: typer.Context,
    path: Places = None,
    keep: Keep = None,
    older_than: OlderThan = None,
    state: State = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Delete old runs, after listing them with their sizes and asking.

    A run must match all given filters. A running run stays, and so does the target of a link.

    Returns:
        0; 1 when nobody agreed.

    Raises:
        FdlError: Nothing says which runs go, or one cannot be removed.
    """
    rule = Rule(keep, older_than, state)
    runs = rule.choose(search(places(ctx.obj, path)), datetime.now().astimezone())
    if not runs:
        output.note("no run to remove")
        return 0
    return delete(runs, [], yes=yes, dry_run=dry_run)
