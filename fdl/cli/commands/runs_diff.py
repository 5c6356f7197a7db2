"""``fdl runs diff``: the step at which two runs part, and the cause."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import FdlError, UsageError
from fdl.base.terminal import has_yes
from fdl.cli.commands.runs_group import OneRun, agreed, chosen, print_json
from fdl.cli.commands.verb import DryRun, Group, Json, Verb

if TYPE_CHECKING:
    from fdl.run.bisect import Finding, Search
    from fdl.runs.diff import Verdict

verbs = Group()


@verbs.command("diff", cls=Verb)
def diff(
    ctx: typer.Context,
    first: OneRun,
    second: OneRun,
    bisect: Annotated[
        bool,
        typer.Option("--bisect", help="Train the first steps again to be certain of the cause"),
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Find the first step at which two runs differ, and the cause.

    It compares samples, losses, gradient norms and weights, to the bit. The exit code is 0 if the
    runs agree, 1 if they differ, and 2 if the records cannot tell.

    With --bisect, it repeats the steps up to the difference in a temporary folder. It swaps one
    setting, the code, the threads or the ranks at a time, until one gives the second run. Both
    programs run again with today's data, after a question; `fdl -y` answers it. The runs and the
    working tree do not change.

    Returns:
        0, 1 or 2, as those of ``diff``.

    Raises:
        FdlError: A word means no run, or the records cannot tell. With --bisect: a run cannot be
            repeated.
    """
    from fdl.runs.diff import AGREE, PART, UNKNOWN, compare, text

    try:
        runs = chosen(ctx.obj, first), chosen(ctx.obj, second)
        if runs[0].path.samefile(runs[1].path):
            raise UsageError(f"both arguments name {runs[0].path}", hint="name two runs")
        verdict = compare(*runs)
        finding = _searched(verdict, dry_run=dry_run) if bisect and verdict.difference else None
    except FdlError as problem:
        problem.exit_code = UNKNOWN
        raise
    if json:
        told = {"bisect": finding.as_json()} if finding is not None else {}
        print_json({**verdict.as_json(), **told})
    else:
        output.write(sys.stdout, text(verdict))
        if finding is not None:
            output.write(sys.stdout, f"\n{finding.sentence}\n")
    return AGREE if verdict.difference is None else PART


def _searched(verdict: Verdict, *, dry_run: bool) -> Finding | None:
    """Train the first steps again; with ``dry_run``, only say what would be trained."""
    from fdl.run.bisect import search, search_of
    from fdl.run.repeat import Repeats

    plan = search_of(verdict)
    for line in plan.lines():
        output.note(line)
    for recipe in plan.recipes:
        output.note(f"  runs, in {recipe.cwd}: {recipe.shown()}")
    if dry_run:
        return None
    _require_consent(plan)
    with tempfile.TemporaryDirectory(prefix="fdl-bisect-") as folder:
        repeats = Repeats(Path(folder), plan.steps)
        return search(plan, verdict, repeats.train, output.note)


def _require_consent(plan: Search) -> None:
    """Ask before the programs run: their records name them, and may come from somebody else.

    Raises:
        FdlError: Nobody agreed, or a program is not in the project that was entered.
    """
    from fdl.runs.recipe import repository

    here = Path.cwd()
    top = (repository(here) or here).resolve()
    for recipe in plan.recipes:
        if not recipe.cwd.resolve().is_relative_to(top):
            raise FdlError(
                f"nothing was started: a run was trained in {recipe.cwd}, not inside {top}",
                hint=f"if you trust the run: cd {recipe.cwd}, and type the command again",
            )
    if not (has_yes() or agreed("run these programs?")):
        raise FdlError(
            "nothing was started: the records of the runs say what is executed",
            hint="look at the lines above, then type: fdl -y runs diff A B --bisect",
        )
