"""``fdl why``: every place that has a say in one value, and which one wins."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fdl.base import output
from fdl.cli.commands.verb import Call, Complete, Group, Json, Open

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
    from fdl.cli import answers

    asked = _with_path(ctx.obj, field)
    output.write(sys.stdout, answers.why(ctx.obj, asked, command or [], as_json=json))
    return 0


def _with_path(call: Call, asked: str) -> str:
    """``last:lr`` with the path of the run in place of its name; anything else is unchanged.

    Raises:
        FdlError: The name means no run, or several.
    """
    from fdl.runs.metrics import BEST_OF
    from fdl.runs.resolved import split

    word, colon, field = asked.rpartition(":")
    is_best = word.startswith(BEST_OF)
    if not colon or not word or (not is_best and split(asked) is not None):
        return asked
    from fdl.cli.commands.runs_group import project_folders
    from fdl.runs.find import choose, search

    places = project_folders(call)
    # The key of a manifest may have a colon, so that only the name of a run is a run.
    if is_best or word == "last" or any(run.name.startswith(word) for run in search(places)):
        return f"{choose(word, places).path}:{field}"
    return asked
