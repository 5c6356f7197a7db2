"""``fdl runs diff``: the step at which two runs part, and the cause."""

from __future__ import annotations

import sys

import typer

from fdl import output
from fdl.commands.runs_group import OneRun, chosen, print_json
from fdl.commands.verb import Group, Json, Verb
from fdl.errors import FdlError, UsageError

verbs = Group()


@verbs.command("diff", cls=Verb)
def diff(
    ctx: typer.Context,
    first: OneRun,
    second: OneRun,
    json: Json = False,
) -> int:
    """Find the first step at which two runs differ, and the cause.

    It compares samples, losses, gradient norms and weights, to the bit. The exit code is 0 if the
    runs agree, 1 if they part, and 2 if the records cannot tell.

    Returns:
        0, 1 or 2, as those of ``diff``.

    Raises:
        FdlError: A word means no run, or the records cannot tell.
    """
    from fdl.run_directory.diff import AGREE, PART, UNKNOWN, compare, text

    try:
        runs = chosen(ctx.obj, first), chosen(ctx.obj, second)
        if runs[0].path.samefile(runs[1].path):
            raise UsageError(f"both words mean {runs[0].path}", hint="name two runs")
        verdict = compare(*runs)
    except FdlError as problem:
        problem.exit_code = UNKNOWN
        raise
    if json:
        print_json(verdict.as_json())
    else:
        output.write(sys.stdout, text(verdict))
    return AGREE if verdict.difference is None else PART
