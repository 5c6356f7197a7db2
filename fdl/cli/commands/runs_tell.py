"""``fdl runs tell``: act on a training while it runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fdl.base import output
from fdl.base.errors import UsageError
from fdl.cli.commands.runs_group import OneRun, chosen, print_json
from fdl.cli.commands.verb import Complete, Group, Json, Verb
from fdl.runs.find import shortened
from fdl.runs.follow import parse, tell as tell_run

verbs = Group()


@verbs.command("tell", cls=Verb)
def tell(
    ctx: typer.Context,
    run: OneRun,
    act: Annotated[
        list[str] | None,
        typer.Argument(help="lr=RATE, set KEY=VALUE, checkpoint, pause, continue or stop"),
        Complete("run-acts"),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for the end of a step", metavar="SECONDS")
    ] = 60.0,
    json: Json = False,
) -> int:
    """Act on a training while it runs: change a setting, save, pause or stop.

    The training acts between two steps, with several ranks after the same step, and records it in
    acts.jsonl. The exit code is 0 if it did, else 1. `stop` ends as Ctrl-C does, with a checkpoint.

    Raises:
        FdlError: The run is over or cannot be reached, it refuses, or no step has ended in time.
    """
    if timeout <= 0:
        raise UsageError(f"--timeout takes more than 0 seconds, not {timeout:g}")
    meant = parse(act or ())
    found = chosen(ctx.obj, run)
    answer = tell_run(found, meant, timeout)
    if json:
        return print_json({"run": found.name, "path": str(found.path), **answer})
    output.write(sys.stdout, f"{shortened(found.path)}: {answer.get('text', 'done')}\n")
    return 0
