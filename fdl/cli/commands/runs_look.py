"""``fdl runs show``, ``compare``, ``diff``, ``open``, ``tail``, ``ui`` and ``verify``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import FdlError, UsageError
from fdl.base.units import printable
from fdl.cli.commands.bundled import start
from fdl.cli.commands.runs import OneRun, Places, chosen, places, project_folders
from fdl.cli.commands.verb import Complete, Context, DryRun, Group, Json, Verb, print_json
from fdl.manifest.select.project import locate
from fdl.runs import follow as follower
from fdl.runs.describe import Comparison, as_json, how_to_resume, page, require_several
from fdl.runs.find import choose, shortened
from fdl.runs.run import LOG, METRICS, REPORT, RUNNING, read

if TYPE_CHECKING:
    from fdl.runs.run import Run


verbs = Group()

_PROOF = "flodl.train.run.verify"
_LEDGER = "samples.ledger"


@verbs.command("show", cls=Verb)
def show(ctx: Context, run: OneRun = "last", json: Json = False) -> int:
    """Show one run: metrics, configuration with its origins, environment, files.

    Raises:
        FdlError: The word means no run, or the run cannot be read.
    """
    found = chosen(ctx.obj, run)
    if json:
        return print_json(as_json(found, whole=True))
    resume = ""
    if found.is_resumable:
        project = locate()
        resume = how_to_resume(found, project.directory if project else "")
    output.show(page(found, resume))
    return 0


@verbs.command("compare", cls=Verb)
def compare(
    ctx: Context,
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Two or more runs, named as in `fdl runs show`"),
        Complete("runs"),
    ] = None,
    json: Json = False,
) -> int:
    """Show the differences between runs; a star marks the best value of each metric.

    Raises:
        FdlError: A word means no run, or there are not two different ones.
    """
    searched = project_folders(ctx.obj)
    found = [choose(word, searched) for word in runs or ()]
    require_several(found)
    comparison = Comparison(found)
    if json:
        return print_json(comparison.as_json())
    output.show(comparison.page())
    return 0


@verbs.command("open", cls=Verb)
def open_(
    ctx: Context,
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
        elif "epochs" not in found.record:
            why = "its program did not write one"
        else:
            running = found.state == RUNNING
            why = "its first epoch is not over" if running else "no epoch was finished"
        raise FdlError(
            f"{shortened(found.path)} has no {REPORT}: {why}",
            hint=f"fdl runs show {found.name}",
        )
    from fdl.runs.follow import show

    path = report.resolve()
    if print or not show(path, os.environ):
        output.write(sys.stdout, f"{path}\n")
    return 0


@verbs.command("tail", cls=Verb)
def tail(
    ctx: Context,
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


@verbs.command("ui", cls=Verb)
def ui(
    ctx: Context,
    path: Places = None,
    port: Annotated[int, typer.Option(help="Port of the page; 0 takes a free one")] = 0,
    open: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser")
    ] = True,
    token: Annotated[
        bool,
        typer.Option(
            "--token/--no-token",
            help="Let only those read who know the address; without, every user of this machine",
        ),
    ] = True,
) -> int:
    """Show many runs on one page in the browser, until Ctrl-C.

    The page is for this machine only and changes no run. Runs that are training are updated. The
    address contains a token, which is kept in a file that only you can read.

    Raises:
        FdlError: The manifest is broken, a folder is missing, or the port cannot be used.
    """
    from fdl.cli.commands.docs import until_interrupted
    from fdl.runs.pages.catalog import Catalog
    from fdl.runs.pages.many import RunsPage
    from fdl.runs.pages.server import PageServer, page_token

    searched = places(ctx.obj, path)
    title = ", ".join(str(shortened(place)) for place in searched)
    catalog = Catalog(searched)
    page = RunsPage(catalog, title)
    with PageServer(page, port, token=page_token() if token else "") as server:
        # The browser needs longer to start than most runs need to be read.
        catalog.start()
        unprotected = "without a token, every user and program of this machine can read the runs"
        warning = "" if token else unprotected
        return until_interrupted(server, server.url, "the page", opens=open, warning=warning)


@verbs.command("diff", cls=Verb)
def diff(
    ctx: Context,
    first: OneRun,
    second: OneRun,
    json: Json = False,
) -> int:
    """Find the first step at which two runs differ, and the cause.

    It compares samples, losses, gradient norms and weights, to the bit. The exit code is 0 if the
    runs agree, 1 if they differ, and 2 if the records cannot tell.

    Returns:
        0, 1 or 2, as those of ``diff``.

    Raises:
        FdlError: A word means no run, or the records cannot tell.
    """
    from fdl.runs.diff import AGREE, PART, UNKNOWN, compare, text

    try:
        runs = chosen(ctx.obj, first), chosen(ctx.obj, second)
        if runs[0].path.samefile(runs[1].path):
            raise UsageError(f"both arguments name {runs[0].path}", hint="name two runs")
        verdict = compare(*runs)
    except FdlError as problem:
        problem.exit_code = UNKNOWN
        raise
    if json:
        print_json(verdict.as_json())
    else:
        output.write(sys.stdout, text(verdict))
    return AGREE if verdict.difference is None else PART


@verbs.command("verify", cls=Verb)
def verify(ctx: Context, run: OneRun = "last", json: Json = False, dry_run: DryRun = False) -> int:
    """Prove that a run trained every sample once per epoch.

    The exit code is 0 if it is proved, 1 if not, and 2 if the run has no record of samples.

    Returns:
        0 where it is proved, 1 where it is not, 2 where it cannot be read.

    Raises:
        FdlError: The word means no run, or Python cannot be started.
    """
    found = chosen(ctx.obj, run)
    if not dry_run:
        _require_ledger(found)
    arguments = [str(found.path), *(["--json"] if json else [])]
    return start(ctx.obj, "runs verify", _PROOF, arguments, dry_run=dry_run)


def _require_ledger(run: Run) -> None:
    """Refuse a run that cannot have a sample ledger, with exit code 2.

    Raises:
        FdlError: It was trained on one device.
    """
    record = run.record
    # Anything but a complete record of one process is for flodl to explain.
    alone = "launched_ranks" in record and record["launched_ranks"] in (None, 1)
    if (run.path / _LEDGER).exists() or "ledger" in record or not alone:
        return
    raise FdlError(
        f"{shortened(run.path)} has no sample ledger: it was trained on one device, and only a "
        "training in several processes writes one",
        hint="name a run of several processes: fdl runs verify RUN",
        exit_code=2,
    )
