"""``fdl runs rm`` and ``prune``: delete runs and checkpoints."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import FdlError, UsageError
from fdl.base.units import printable, size_text
from fdl.cli.commands.runs_group import (
    Places,
    State,
    Where,
    Yes,
    agreed,
    counted,
    list_sizes,
    only_where,
    places,
    project_folders,
    remove_all,
)
from fdl.cli.commands.verb import Complete, DryRun, Group, Verb
from fdl.runs import prune as pruning
from fdl.runs.find import choose, search, shortened
from fdl.runs.prune import Rule, continued_by, remove_checkpoints
from fdl.runs.run import RUNNING

if TYPE_CHECKING:
    from fdl.runs.prune import Surplus
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
        output.note(_NOTHING)
        return 1
    return remove_all(runs)


_NOTHING = "nothing was removed; --yes removes without asking"


@verbs.command("prune", cls=Verb)
def prune(
    ctx: typer.Context,
    path: Places = None,
    keep_best: Annotated[
        int | None, typer.Option(help="Keep the best N runs of each folder, by the metric of --by")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help="The metric of --keep-best; `margin:max`: higher is better"),
        Complete("metrics"),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Apply --keep-best to each value of this setting, not to each folder"),
        Complete("run-columns"),
    ] = None,
    keep: Keep = None,
    older_than: OlderThan = None,
    state: State = None,
    where: Where = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(help="Delete only checkpoints, except these: last,best,model or none"),
        Complete("checkpoint-kinds"),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Delete old runs, all but the best, or only checkpoints, after asking.

    A run must match all given conditions. A running run stays, and so does the target of a link. A
    run that did not measure the metric stays. With --checkpoints the runs stay, and
    lose the other checkpoints. A checkpoint that a run can resume from always stays.

    Returns:
        0; 1 when nobody agreed.

    Raises:
        FdlError: Nothing says which runs go, a name is wrong, or a file cannot be removed.
    """
    best = pruning.keep_best(keep_best, by, group)
    kept = pruning.kinds(checkpoints) if checkpoints is not None else None
    has_rule = keep is not None or older_than is not None or state is not None
    if not has_rule and best is None and where is None and kept is None:
        raise UsageError(
            "no condition says which runs or checkpoints to remove",
            hint="give --keep N, --keep-best N --by METRIC, --where CONDITION or "
            "--checkpoints KINDS",
        )
    rule = Rule(keep, older_than, state) if has_rule else None
    every = search(places(ctx.obj, path))
    runs = pruning.choose(every, rule, best, datetime.now().astimezone())
    meeting = {run.path for run in only_where(where, every)}
    runs = [run for run in runs if run.path in meeting and not run.is_linked]
    if kept is not None:
        return _lighten(pruning.surplus(runs, every, kept), yes=yes, dry_run=dry_run)
    if not runs:
        output.note("no run to remove")
        return 0
    return delete(runs, [], yes=yes, dry_run=dry_run)


def _lighten(found: list[Surplus], *, yes: bool, dry_run: bool) -> int:
    """Delete checkpoints, after listing them and asking."""
    if not found:
        output.note("no checkpoint to remove")
        return 0
    _show(found)
    if dry_run:
        return 0
    if not yes and not agreed(f"remove {_counted(found)}?"):
        output.note(_NOTHING)
        return 1
    return _remove(found)


def _counted(found: list[Surplus]) -> str:
    return counted(sum(len(one.names) for one in found), "checkpoint")


def _show(found: list[Surplus]) -> None:
    """Print the checkpoints with their sizes, and the sum."""
    from fdl.base.tables import table

    rows = [
        (
            printable(str(shortened(one.run.path))),
            ", ".join(one.names),
            size_text(one.bytes),
            f"{one.kept} stays: to resume from" if one.kept else "",
        )
        for one in found
    ]
    total = size_text(sum(one.bytes for one in found))
    output.show(table([*rows, (_counted(found), "", total, "")], right=(2,)))
    sys.stdout.flush()


def _remove(found: list[Surplus]) -> int:
    """Delete checkpoints; return 1 if one cannot be deleted, else 0."""
    freed = removed = code = 0
    for one in found:
        try:
            if remove_checkpoints(one):
                freed += one.bytes
                removed += len(one.names)
            else:
                output.warning(
                    f"{shortened(one.run.path)} is not removed: it is running or no longer exists"
                )
        except FdlError as problem:
            output.error(problem.message, problem.hint)
            code = 1
    output.note(f"removed {counted(removed, 'checkpoint')}, {size_text(freed)} freed")
    return code
