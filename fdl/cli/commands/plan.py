"""``fdl plan``: what a command would start, on which devices, and with which settings."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import UsageError
from fdl.cli.commands.verb import Group, Json, Open

if TYPE_CHECKING:
    from fdl.cli.commands.verb import Call
    from fdl.plan.inspect import Command

verbs = Group()

GHOST = "flodl.ranks.simulate"


_SIMULATION = "Simulation"
_USAGE = "fdl plan train --simulate 40,100"


def _milliseconds(text: str | None) -> str | None:
    """The value of --simulate, which must be numbers separated by commas."""
    try:
        [float(one) for one in (text or "0").split(",")]
    except ValueError:
        raise typer.BadParameter("expected numbers separated by commas, such as 40,100") from None
    return text


@verbs.command("plan", cls=Open)
def plan(
    ctx: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="A command with its arguments: `train quick --ranks 2`"),
    ] = None,
    simulate: Annotated[
        str | None,
        typer.Option(
            help="Predict the throughput of every mode for ranks with these milliseconds per "
            "batch: 40,100",
            callback=_milliseconds,
            rich_help_panel=_SIMULATION,
        ),
    ] = None,
    sync_ms: Annotated[
        float | None,
        typer.Option(
            help="Milliseconds of one average (default: estimated)", rich_help_panel=_SIMULATION
        ),
    ] = None,
    batches: Annotated[
        int | None,
        typer.Option(
            help="Batches per epoch (default: from the manifest)", rich_help_panel=_SIMULATION
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Number of epochs (default: from the manifest)", rich_help_panel=_SIMULATION
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Show what a command would start, on which devices and with which settings.

    It starts nothing. With --simulate, it prints a prediction. Words after `--` go to the command.

    Returns:
        0; with ``--simulate`` the exit code of the prediction.

    Raises:
        FdlError: The line names nothing that runs, a manifest on the way is broken, or the ranks
            that are asked for make no sense.
    """
    from fdl.plan.inspect import resolved

    if not command:
        raise UsageError("no command is given", hint="fdl plan train --ranks 2")
    lengths = {"epochs": epochs, "batches": batches}
    if simulate is not None:
        return _simulate(ctx.obj, command, simulate, sync_ms, lengths, json=json)
    if sync_ms is not None:
        raise UsageError("--sync-ms needs --simulate", hint=_USAGE)
    call: Call = ctx.obj
    project, words = call.behind_environment(_with_own(command, lengths))
    found = resolved(project, words, call.here())
    output.warnings(found.warnings)
    if found.plan.kind != "entry":
        raise UsageError(
            f"`fdl {' '.join(found.plan.command)}` is a shell command: it starts once",
            hint="`fdl --dry-run` shows it; only an `entry` has ranks",
        )
    from fdl.plan.distribution import as_json, as_text

    if json:
        output.print_json(as_json(found))
    else:
        output.write(sys.stdout, as_text(found, output.palette(sys.stdout)))
    return 0


def _with_own(words: list[str], lengths: dict[str, int | None]) -> list[str]:
    """The command's words, with the program's own ``--epochs`` and ``--batches`` among them."""
    end = words.index("--") if "--" in words else len(words)
    own = [(f"--{name}", str(value)) for name, value in lengths.items() if value is not None]
    return [*words[:end], *(word for pair in own for word in pair), *words[end:]]


def _simulate(
    call: Call,
    words: list[str],
    milliseconds: str,
    sync_ms: float | None,
    lengths: dict[str, int | None],
    *,
    json: bool,
) -> int:
    """Start the prediction with what was typed, and with the manifest's lengths otherwise."""
    from fdl.cli.commands.bundled import start
    from fdl.plan.inspect import resolved

    project, rest = call.behind_environment(words)
    command = resolved(project, rest, call.here())
    arguments = ["--simulate", milliseconds]
    if sync_ms is not None:
        arguments += ["--sync-ms", f"{sync_ms:g}"]
    for name, field in (("batches", "batches_per_epoch"), ("epochs", "epochs")):
        value = _training(command, field) if lengths[name] is None else lengths[name]
        if value is not None:
            arguments += [f"--{name}", str(value)]
    return start(call, "plan", GHOST, [*arguments, *(["--json"] if json else [])])


def _training(command: Command, field: str) -> int | None:
    """A whole number of the command's ``training`` settings, or None."""
    found = [one.value for one in command.fields if one.path == ("training", field)]
    return found[0] if found and isinstance(found[0], int) else None
