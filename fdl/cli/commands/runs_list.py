"""``fdl runs list``: the runs of a project, selected, sorted, and as a table, CSV or JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import UsageError
from fdl.cli.commands.runs import Places, State, Where, only_where, places
from fdl.cli.commands.verb import Call, Complete, Context, Group, Json, Verb, print_json
from fdl.manifest.select.project import locate
from fdl.run.batch.queue import queued
from fdl.runs.find import by_metric, nothing_collected, shortened, survey, unmeasured
from fdl.runs.metrics import Metric
from fdl.runs.prune import require_state
from fdl.runs.quantity import Known, listed, sorted_by
from fdl.runs.run import LISTED_STATES

if TYPE_CHECKING:
    from fdl.run.batch.queue import Queued
    from fdl.runs.quantity import Quantity
    from fdl.runs.run import Run

verbs = Group()


@verbs.command("list", cls=Verb)
def list_(
    ctx: Context,
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
        int | None,
        typer.Option(help="Show the first N runs of --sort or --best, else the newest N"),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, numbers in full")] = False,
    json: Json = False,
) -> int:
    """List the runs, and the jobs that a cluster has in its queue.

    On a terminal, the newest run is the last row. In a pipe and with --csv or --json, it is the
    first. With --sort or --best, the first run is the first row everywhere; runs without the metric
    come last. A star marks the best of several values.

    A run is dead if its record says running and its process no longer exists. A damaged run has a
    record that cannot be read.

    Raises:
        FdlError: The manifest is broken, a folder is missing, a name or a condition is wrong.
    """
    _exclude("--csv", csv, "--json", json)
    _exclude("--sort", sort, "--best", best)
    if limit is not None and limit < 1:
        raise UsageError(f"--limit takes 1 or more, not {limit}")
    if state:
        state = require_state(state, LISTED_STATES)
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
        from fdl.runs.listing import as_csv

        output.write(sys.stdout, as_csv(runs, wanted))
    elif runs or waiting:
        _show(runs, metric, wanted, waiting, is_sorted=bool(sort or best))
    else:
        shown = ", ".join(str(shortened(place)) for place in searched)
        which = f" in state {state}" if state else " that meet the condition" if where else ""
        output.note(f"there are no runs{which} in {shown}")
    return 0


def _exclude(one: str, has_one: object, other: str, has_other: object) -> None:
    if has_one and has_other:
        raise UsageError(f"{one} and {other} exclude each other", hint="give one of them")


def _columns(runs: list[Run], named: list[str] | None) -> list[Quantity]:
    """The columns that were asked for; names are separated by commas."""
    if not named or not runs:
        return []

    known = Known(runs)
    return [known.resolve(word) for part in named for word in listed(part)]


def _ordered(
    runs: list[Run], best: str | None, sort: str | None
) -> tuple[list[Run], Metric | None]:
    """The runs in the order that was asked for, and the metric of ``--best``."""
    if sort and runs:
        return sorted_by(sort, runs), None
    metric = Metric.parse(best) if best else None
    if metric and runs:
        ranked = by_metric(metric, runs)
        if not ranked:
            raise unmeasured(metric, runs)
        measured = {run.path for run in ranked}
        return [*ranked, *(run for run in runs if run.path not in measured)], metric
    return runs, None


def _print_as_json(runs: list[Run], columns: list[Quantity], waiting: list[Queued]) -> int:
    from fdl.runs import listing
    from fdl.runs.describe import as_json

    sound = [run for run in runs if not run.problem]
    documents = [as_json(run) for run in sound]
    if columns:
        for document, values in zip(documents, listing.as_json(sound, columns), strict=True):
            document["columns"] = values
    damaged = [{"path": str(run.path), "problem": run.problem} for run in runs if run.problem]
    jobs = [vars(one) for one in waiting]
    return print_json({"runs": documents, "damaged": damaged, "queued": jobs})


@nothing_collected()
def _show(
    runs: list[Run],
    metric: Metric | None,
    columns: list[Quantity],
    waiting: list[Queued],
    *,
    is_sorted: bool,
) -> None:
    """Print the queue and a table of the runs, and warn of the runs that cannot be read."""
    from fdl.runs import listing

    if waiting:
        output.show(listing.queue(waiting))
    if not runs:
        return
    on_terminal = sys.stdout.isatty()
    rows = runs[::-1] if on_terminal and not is_sorted else runs
    if columns:
        output.show(listing.in_columns(rows, columns))
    elif on_terminal:
        width = output.columns(sys.stdout) or 80
        drawn, left = listing.on_terminal(rows, width, metric)
        output.show(drawn)
        if left:
            line = f"{len(left)} more for --columns: {','.join(left)}"
            output.note(line if len(line) <= width else f"{line[: width - 1]}…")
    else:
        output.show(listing.in_pipe(rows, metric))
    for run in runs:
        if run.problem:
            output.warning(f"{shortened(run.path)} {run.problem}; fdl never removes it")


def _queued(call: Call) -> list[Queued]:
    """The jobs of the project around here that a cluster has in its queue."""
    if locate() is None:
        return []
    return queued(call.project().directory)
