"""``fdl why``: every place that has a say in one value, and which one wins."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fdl import output
from fdl.commands.verb import Complete, Group, Json, Open

verbs = Group()


@verbs.command("why", cls=Open)
def why(
    ctx: typer.Context,
    field: Annotated[
        str,
        typer.Argument(
            help="`training.lr`, `commands.test.run`, `env.HF_HOME`, or `RUN:training.lr` of a run "
            "or checkpoint"
        ),
        Complete("fields"),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Explain it for this command, as you type it: `train quick`"),
    ] = None,
    json: Json = False,
) -> int:
    """Explain one value: every place that sets it, and which one wins.

    Raises:
        FdlError: Nothing sets it, or what it stands in cannot be read.
    """
    from fdl.inspect import answers

    output.write(sys.stdout, answers.why(ctx.obj, field, command or [], as_json=json))
    return 0
