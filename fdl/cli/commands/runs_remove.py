"""``fdl runs rm`` and ``prune``: delete runs and checkpoints."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import FdlError, UsageError
from fdl.base.terminal import ask
from fdl.base.units import counted, printable, size_text
from fdl.cli.commands.runs import (
    Places,
    State,
    Where,
    only_where,
    places,
    project_folders,
)
from fdl.cli.commands.verb import Complete, Context, DryRun, Group, Verb
from fdl.runs import prune as pruning
from fdl.runs.find import choose, search, shortened
from fdl.runs.prune import Removal, continued_by, remove
from fdl.runs.run import RUNNING

if TYPE_CHECKING:
    from fdl.runs.run import Run


verbs = Group()

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking")]


@verbs.command("rm", cls=Verb)
def rm(
    ctx: Context,
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
    removals = []
    for run in named:
        names = ", ".join(one.name for one in continued_by(run, every))
        remark = f"resumed by {names}" if names else ""
        removals.append(Removal(run, run.bytes, remark=remark))
    return _delete("run", removals, yes=yes, dry_run=dry_run)


@verbs.command("prune", cls=Verb)
def prune(
    ctx: Context,
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
    keep: Annotated[int | None, typer.Option(help="Keep the newest N runs of each folder")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Select runs older than this: 30d, 12h, 2w")
    ] = None,
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
    kept = pruning.kinds(checkpoints) if checkpoints is not None else None
    conditions = (keep_best, by, group, keep, older_than, state, where, checkpoints)
    if all(one is None for one in conditions):
        raise UsageError(
            "no condition says which runs or checkpoints to remove",
            hint="give --keep N, --keep-best N --by METRIC, --where CONDITION or "
            "--checkpoints KINDS",
        )
    every = search(places(ctx.obj, path))
    runs = pruning.choose(
        every, datetime.now().astimezone(), keep=keep, older_than=older_than, state=state,
        keep_best=keep_best, by=by, group=group,
    )  # fmt: skip
    meeting = {run.path for run in only_where(where, every)}
    runs = [run for run in runs if run.path in meeting and not run.is_linked]
    if kept is not None:
        files = pruning.surplus(runs, every, kept)
        return _delete("checkpoint", files, yes=yes, dry_run=dry_run)
    removals = [Removal(run, run.bytes) for run in runs]
    return _delete("run", removals, yes=yes, dry_run=dry_run)


def _delete(what: str, found: list[Removal], *, yes: bool, dry_run: bool) -> int:
    """Delete runs or checkpoints, after listing them and asking; 1 if one of them stays."""
    if not found:
        output.note(f"no {what} to remove")
        return 0
    _show(what, found)
    if dry_run:
        return 0
    if not yes and not _agreed(f"remove {_counted(what, found)}?"):
        output.note("nothing was removed; --yes removes without asking")
        return 1
    removed, code = [], 0
    for one in found:
        try:
            if remove(one):
                removed.append(one)
            else:
                output.warning(
                    f"{shortened(one.run.path)} is not removed: it has changed since it was listed"
                )
        except FdlError as problem:
            output.error(problem.message, problem.hint)
            code = 1
    freed = f", {size_text(sum(one.bytes for one in removed))} freed" * (what == "checkpoint")
    output.note(f"removed {_counted(what, removed)}{freed}")
    return code


def _counted(what: str, found: list[Removal]) -> str:
    return counted(sum(len(one.files) or 1 for one in found), what)


def _show(what: str, found: list[Removal]) -> None:
    """Print what may go with its size, and the sum."""
    from fdl.base.tables import table

    rows = [
        (
            printable(str(shortened(one.run.path))),
            ", ".join(one.files) or one.run.state,
            size_text(one.bytes),
            one.remark,
        )
        for one in found
    ]
    total = size_text(sum(one.bytes for one in found))
    output.show(table([*rows, (_counted(what, found), "", total, "")], right=(2,)))
    sys.stdout.flush()


def _agreed(question: str) -> bool:
    """Ask on the terminal; no without one."""
    return (ask(f"{question} [y/N] ") or "").lower() in ("y", "yes")
