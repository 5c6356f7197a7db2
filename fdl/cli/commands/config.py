"""``fdl config``: what the manifest says and where each value was written, and changing one."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fdl.base import output
from fdl.cli.answers import config_show
from fdl.cli.commands.verb import Call, Complete, DryRun, Group, Json, Open, Verb

verbs = Group("config", "Show the manifest's values with their origins, or change one.")


@verbs.command("show", cls=Open)
def show(
    ctx: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="An environment, or a command as you type it: `train quick`"),
        Complete("first-environments"),
    ] = None,
    json: Json = False,
) -> int:
    """Print the merged manifest as YAML with the file and line of every value.

    With a command: the values that its program gets.

    Raises:
        FdlError: There is no manifest, it is broken, or the command does not exist.
    """
    output.write(sys.stdout, config_show(ctx.obj, command or [], as_json=json))
    return 0


@verbs.command("set", cls=Verb)
def set_(
    ctx: typer.Context,
    field: Annotated[
        str,
        typer.Argument(help="Dotted path: `training.lr`, `commands.t.run`"),
        Complete("fields"),
    ],
    value: Annotated[str, typer.Argument(help="New value, as YAML: 0.01, true, a word")],
    for_: Annotated[
        str | None,
        typer.Option("--for", help="Change it for this command: `train quick`"),
        Complete("command-line"),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            help="File to change: a path, an environment, or `base` (default: the one that wins)"
        ),
        Complete("layers"),
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Change one value where it takes effect.

    Comments and layout of the file stay as they are.

    Raises:
        FdlError: The change would not take effect, would break the manifest, or cannot be made
            without touching anything else; nothing is written then.
    """
    # It reads and checks the files itself, with yaml and pydantic, which `config show` does not need.
    from fdl.plan.edit import prepare, words_of

    call: Call = ctx.obj
    project, words = call.behind_environment(words_of(for_ or ""))
    asked = None if for_ is None else words
    change = prepare(project, field, value, where=where, words=asked, place=call.here())
    if dry_run:
        output.write(sys.stdout, change.diff())
    else:
        change.write()
        output.write(sys.stdout, change.report())
    return 0
