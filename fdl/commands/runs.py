"""``fdl runs``: list, look into, compare, watch and clear away what trainings leave behind."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl import output
from fdl.commands.run_places import Places, folders_of as _folders, places as _places
from fdl.commands.runs_ui import ui, write_page
from fdl.commands.verb import Call, Complete, DryRun, Json, Verb, group
from fdl.errors import FdlError, UsageError
from fdl.run_directory.find import by_metric, choose, search, shortened, unmeasured
from fdl.run_directory.metrics import Metric
from fdl.run_directory.run import LOG, METRICS, REPORT, RUNNING

if TYPE_CHECKING:
    from fdl.batch.queue import Queued
    from fdl.run_directory.run import Run

verbs = group("runs", "List, compare, follow and delete runs.")

SCHEMA_VERSION = 1

OneRun = Annotated[
    str,
    typer.Argument(help="last, best:METRIC, a name or its beginning, or a path"),
    Complete("runs"),
]
State = Annotated[
    str | None,
    typer.Option(
        help="Only runs in this state: running, complete, interrupted, diverged, failed or dead"
    ),
    Complete("run-states"),
]


@verbs.command("list", cls=Verb)
def list_(
    ctx: typer.Context,
    path: Places = None,
    state: State = None,
    best: Annotated[
        str | None,
        typer.Option(help="Sort by the best value of a metric; `margin:max`: higher is better"),
        Complete("metrics"),
    ] = None,
    json: Json = False,
) -> int:
    """List the runs, newest first, and the jobs that a cluster has in its queue.

    A run is dead if its record says running and its process no longer exists.

    Raises:
        FdlError: The manifest is broken, a folder is missing, or no run measured the metric.
    """
    from fdl.run_directory.clean import require_state
    from fdl.run_directory.describe import as_json
    from fdl.run_directory.text import listing, queue

    state = require_state(state) if state else None
    places = _places(ctx.obj, path)
    runs = [run for run in search(places) if state in (None, run.state)]
    metric = Metric.parse(best) if best else None
    if metric and runs:
        ranked = by_metric(metric, runs)
        if not ranked:
            raise unmeasured(metric, runs)
        runs = ranked
    waiting = [] if state or best or path else _queued(ctx.obj)
    if json:
        jobs = [one.as_json() for one in waiting]
        return _print_json({"runs": [as_json(run) for run in runs], "queued": jobs})
    if waiting:
        output.show(queue(waiting))
    elif not runs:
        shown = ", ".join(str(shortened(place)) for place in places)
        output.note(f"there are no runs{f' in state {state}' if state else ''} in {shown}")
    if runs:
        output.show(listing(runs, metric))
    return 0


@verbs.command("show", cls=Verb)
def show(ctx: typer.Context, run: OneRun = "last", json: Json = False) -> int:
    """Show one run: metrics, configuration with its origins, environment, files.

    Raises:
        FdlError: The word means no run, or the run cannot be read.
    """
    from fdl.run_directory.describe import as_json, page

    found = _chosen(ctx.obj, run)
    if json:
        return _print_json(as_json(found, whole=True))
    output.show(page(found))
    return 0


@verbs.command("compare", cls=Verb)
def compare(
    ctx: typer.Context,
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Two or more runs, named as in `fdl runs show`"),
        Complete("runs"),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with curves, settings and tables"),
    ] = None,
    json: Json = False,
) -> int:
    """Show the differences between runs; a star marks the best value of each metric.

    Raises:
        FdlError: A word means no run, there are not two different ones, or the page cannot be
            written.
    """
    from fdl.run_directory.describe import Comparison, require_several

    places = _folders(ctx.obj)
    found = [choose(word, places) for word in runs or ()]
    require_several(found)
    if html is not None:
        write_page(found, html)
        return 0
    comparison = Comparison(found)
    if json:
        return _print_json(comparison.as_json())
    output.show(comparison.page())
    return 0


@verbs.command("open", cls=Verb)
def open_(
    ctx: typer.Context,
    run: OneRun = "last",
    print: Annotated[bool, typer.Option("--print", help="Print the path and open nothing")] = False,
) -> int:
    """Open a run's report in the browser; without a display, print its path.

    Raises:
        FdlError: The word means no run, or the run has no report.
    """
    found = _chosen(ctx.obj, run)
    report = found.path / REPORT
    if not report.is_file():
        if found.epochs:
            why = "it was removed, or never written"
        else:
            running = found.state == RUNNING
            why = "its first epoch is not over" if running else "no epoch was finished"
        raise FdlError(
            f"{shortened(found.path)} has no {REPORT}: {why}",
            hint=f"fdl runs show {found.name}",
        )
    from fdl.run_directory.browser import show

    path = report.resolve()
    if print or not show(path, os.environ):
        output.write(sys.stdout, f"{path}\n")
    return 0


@verbs.command("tail", cls=Verb)
def tail(
    ctx: typer.Context,
    run: OneRun = "last",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the run has ended")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-l", help="Number of lines to begin with")] = 10,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Print the table of metrics, not the log")
    ] = False,
) -> int:
    """Print the end of a run's log.

    With --follow, the exit code is 0 if the run completes, else 1.

    Returns:
        0; of a run that was followed, 1 when it did not complete.

    Raises:
        FdlError: The word means no run.
    """
    from fdl.run_directory import follow as follower
    from fdl.run_directory.run import read
    from fdl.run_directory.text import printable

    found = _chosen(ctx.obj, run)
    file = found.path / (METRICS if metrics else LOG)
    if lines < 0:
        raise UsageError(f"--lines takes 0 or more, not {lines}")
    ends = follower.follow(found, file, lines) if follow else follower.last_lines(file, lines)
    for line in ends:
        output.write(sys.stdout, f"{printable(line)}\n")
        sys.stdout.flush()
    if not follow:
        return 0
    ended = read(found.path)
    state = ended.state if ended else "removed"
    output.note(f"{shortened(found.path)}: {state}")
    return 0 if state == "complete" else 1


@verbs.command("clean", cls=Verb)
def clean(
    ctx: typer.Context,
    path: Places = None,
    keep: Annotated[int | None, typer.Option(help="Keep the newest N runs of each folder")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Only runs that began longer ago: 30d, 12h, 2w")
    ] = None,
    state: State = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking")] = False,
    dry_run: DryRun = False,
) -> int:
    """Delete old runs, after listing them with their sizes and asking.

    A run must match all given filters. A running run stays, and so does the target of a link.

    Returns:
        0; 1 when nobody agreed.

    Raises:
        FdlError: Nothing says which runs go, or one cannot be removed.
    """
    from fdl.run_directory.clean import Rule

    rule = Rule(keep, older_than, state)
    runs = rule.choose(search(_places(ctx.obj, path)), datetime.now().astimezone())
    if not runs:
        output.note("no run goes")
        return 0
    _list_sizes(runs)
    if dry_run:
        return 0
    if not yes and not _agreed(len(runs)):
        output.note("nothing was removed; --yes removes without asking")
        return 1
    return _remove(runs)


verbs.command("ui", cls=Verb)(ui)


def _list_sizes(runs: list[Run]) -> None:
    from rich.filesize import decimal

    from fdl.run_directory.text import printable
    from fdl.tables import table

    sizes = [run.bytes for run in runs]
    rows = [
        (printable(str(shortened(run.path))), run.state, decimal(count))
        for run, count in zip(runs, sizes, strict=True)
    ]
    rows.append((_counted(len(runs)), "", decimal(sum(sizes))))
    output.show(table(rows, right=(2,)))


def _agreed(count: int) -> bool:
    from fdl.terminal import ask

    answer = ask(f"remove {_counted(count)}? [y/N] ")
    return (answer or "").lower() in ("y", "yes")


def _remove(runs: list[Run]) -> int:
    from fdl.run_directory.clean import remove

    code = removed = 0
    for run in runs:
        try:
            if remove(run):
                removed += 1
            else:
                output.warning(f"{shortened(run.path)} stays: it has changed since it was listed")
        except FdlError as problem:
            output.error(problem.message, problem.hint)
            code = 1
    output.note(f"removed {_counted(removed)}")
    return code


def _counted(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _chosen(call: Call, word: str) -> Run:
    return choose(word or "last", _folders(call))


def _queued(call: Call) -> list[Queued]:
    """The jobs of the project around here that a cluster has in its queue."""
    from fdl.select.project import locate

    if locate() is None:
        return []
    from fdl.batch.queue import queued

    return queued(call.project().directory)


def _print_json(document: dict[str, object]) -> int:
    from json import dumps

    text = dumps({"schema_version": SCHEMA_VERSION, **document}, indent=2, ensure_ascii=False)
    output.write(sys.stdout, f"{text}\n")
    return 0
