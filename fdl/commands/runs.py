"""``fdl runs``: list, look into, compare and watch what trainings leave behind.

The modules that are imported at the end add their commands to the same group.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl import output
from fdl.commands.runs_group import (
    OneRun,
    Places,
    State,
    Where,
    chosen,
    only_where,
    places,
    print_json,
    project_folders,
    verbs,
)
from fdl.commands.runs_ui import ui, write_page
from fdl.commands.verb import Call, Complete, Json, Verb
from fdl.errors import FdlError, UsageError
from fdl.run_directory.find import by_metric, choose, shortened, survey, unmeasured
from fdl.run_directory.metrics import Metric
from fdl.run_directory.run import LOG, METRICS, REPORT, RUNNING

if TYPE_CHECKING:
    from fdl.batch.queue import Queued
    from fdl.run_directory.quantity import Quantity
    from fdl.run_directory.run import Run


@verbs.command("list", cls=Verb)
def list_(
    ctx: typer.Context,
    path: Places = None,
    state: State = None,
    where: Where = None,
    best: Annotated[
        str | None,
        typer.Option(help="Sort by the best value of a metric; `margin:max`: higher is better"),
        Complete("metrics"),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(help="Sort by a metric, setting or fact, best or lowest first; `lr:max`"),
        Complete("run-columns"),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(help="Metrics, settings and facts to show: lr,seed,val_loss"),
        Complete("run-columns"),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Only the first N of the order, else the newest N")
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, numbers in full")] = False,
    json: Json = False,
) -> int:
    """List the runs, and the jobs that a cluster has in its queue.

    On a terminal, the newest run is the last row. In a pipe and with --csv or --json, it is the
    first. With --sort or --best, the first run is the first row everywhere.

    A run is dead if its record says running and its process no longer exists. A damaged run has a
    record that cannot be read.

    Raises:
        FdlError: The manifest is broken, a folder is missing, a name or a condition is wrong.
    """
    from fdl.run_directory.clean import require_state
    from fdl.run_directory.run import LISTED_STATES

    if csv and json:
        raise UsageError("--csv and --json exclude each other", hint="give one of them")
    if sort and best:
        raise UsageError("--sort and --best exclude each other", hint="give one of them")
    if limit is not None and limit < 1:
        raise UsageError(f"--limit takes 1 or more, not {limit}")
    state = require_state(state, LISTED_STATES) if state else None
    searched = places(ctx.obj, path)
    runs = survey(searched)
    wanted = _columns(runs, columns)
    runs = only_where(where, [run for run in runs if state in (None, run.state)])
    runs, metric = _ordered(runs, best, sort)
    runs = runs[:limit]
    waiting = [] if state or where or best or sort or path else _queued(ctx.obj)
    if json:
        return _print_as_json(runs, wanted, waiting)
    if csv:
        from fdl.run_directory.listing import as_csv

        output.write(sys.stdout, as_csv(runs, wanted))
        return 0
    if waiting:
        from fdl.run_directory.text import queue

        output.show(queue(waiting))
    elif not runs:
        shown = ", ".join(str(shortened(place)) for place in searched)
        which = f" in state {state}" if state else " that meet the condition" if where else ""
        output.note(f"there are no runs{which} in {shown}")
    if runs:
        _show(runs, metric, wanted, is_sorted=bool(sort or best))
    for run in runs:
        if run.problem:
            output.warning(f"{shortened(run.path)} {run.problem}; fdl never removes it")
    return 0


def _columns(runs: list[Run], named: list[str] | None) -> list[Quantity]:
    """The columns that were asked for; names are separated by commas."""
    words = [word.strip() for part in named or () for word in part.split(",") if word.strip()]
    if not words or not runs:
        return []
    from fdl.run_directory.quantity import Known

    known = Known(runs)
    return [known.resolve(word) for word in words]


def _ordered(
    runs: list[Run], best: str | None, sort: str | None
) -> tuple[list[Run], Metric | None]:
    """The runs in the order that was asked for, and the metric of ``--best``."""
    if sort and runs:
        from fdl.run_directory.order import sorted_by

        return sorted_by(sort, runs), None
    metric = Metric.parse(best) if best else None
    if metric and runs:
        ranked = by_metric(metric, runs)
        if not ranked:
            raise unmeasured(metric, runs)
        return ranked, metric
    return runs, None


def _print_as_json(runs: list[Run], columns: list[Quantity], waiting: list[Queued]) -> int:
    from fdl.run_directory import listing
    from fdl.run_directory.describe import as_json

    sound = [run for run in runs if not run.problem]
    documents = [as_json(run) for run in sound]
    if columns:
        for document, values in zip(documents, listing.as_json(sound, columns), strict=True):
            document["columns"] = values
    damaged = [{"path": str(run.path), "problem": run.problem} for run in runs if run.problem]
    jobs = [one.as_json() for one in waiting]
    return print_json({"runs": documents, "damaged": damaged, "queued": jobs})


def _show(
    runs: list[Run], metric: Metric | None, columns: list[Quantity], *, is_sorted: bool
) -> None:
    from fdl.run_directory import listing

    on_terminal = sys.stdout.isatty()
    if on_terminal and not is_sorted:
        runs = runs[::-1]
    if columns:
        output.show(listing.in_columns(runs, columns))
    elif on_terminal:
        width = output.columns(sys.stdout) or 80
        drawn, left = listing.on_terminal(runs, width, metric)
        output.show(drawn)
        if left:
            line = f"{len(left)} more for --columns: {','.join(left)}"
            output.note(line if len(line) <= width else f"{line[: width - 1]}…")
    else:
        output.show(listing.in_pipe(runs, metric))


@verbs.command("show", cls=Verb)
def show(ctx: typer.Context, run: OneRun = "last", json: Json = False) -> int:
    """Show one run: metrics, configuration with its origins, environment, files.

    Raises:
        FdlError: The word means no run, or the run cannot be read.
    """
    from fdl.run_directory.describe import as_json, page

    found = chosen(ctx.obj, run)
    if json:
        return print_json(as_json(found, whole=True))
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

    searched = project_folders(ctx.obj)
    found = [choose(word, searched) for word in runs or ()]
    require_several(found)
    if html is not None:
        write_page(found, html)
        return 0
    comparison = Comparison(found)
    if json:
        return print_json(comparison.as_json())
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
    found = chosen(ctx.obj, run)
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

    found = chosen(ctx.obj, run)
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


def _queued(call: Call) -> list[Queued]:
    """The jobs of the project around here that a cluster has in its queue."""
    from fdl.select.project import locate

    if locate() is None:
        return []
    from fdl.batch.queue import queued

    return queued(call.project().directory)


verbs.command("ui", cls=Verb)(ui)

# Each adds its commands behind those above, in the order of the help page.
import fdl.commands.runs_diff  # noqa: E402
import fdl.commands.runs_import  # noqa: E402
import fdl.commands.runs_notes  # noqa: E402
import fdl.commands.runs_remove  # noqa: E402
import fdl.commands.runs_tell  # noqa: E402, F401
