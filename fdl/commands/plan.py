"""``fdl plan``: what a command would start, on which devices, and with which settings."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from fdl import output
from fdl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fdl.app import Call
    from fdl.inspect.command import Command

GHOST = "flodl.distributed.ghost"


def plan(call: Call) -> int:
    """Print the plan of a command, or let its throughput be predicted.

    Returns:
        0; with ``--simulate`` the exit code of the prediction.

    Raises:
        FdlError: The line names nothing that runs, a manifest on the way is broken, or the ranks
            that are asked for make no sense.
    """
    from fdl.dispatch.compose import join
    from fdl.inspect.command import look_at

    if not call.args.command:
        raise UsageError("there is no command to plan", hint="fdl plan train --ranks 2")
    if call.args.simulate:
        return _simulate(call)
    command = look_at(call, join([*_without_separator(call)]))
    for text in command.warnings:
        output.warning(text)
    if command.target.plan.kind != "entry":
        raise UsageError(
            f"`fdl {' '.join(command.target.plan.command)}` is a shell command: it starts once",
            hint="`fdl --dry-run` shows it; ranks are started of an `entry`",
        )
    from fdl.distribution import as_json, as_text

    if call.args.json:
        text = json.dumps(as_json(command), indent=2, ensure_ascii=False) + "\n"
    else:
        text = as_text(command, output.palette(sys.stdout))
    output.write(sys.stdout, text)
    return 0


def _without_separator(call: Call) -> Iterator[str]:
    """The command's words, with the program's own ``--epochs`` and ``--batches`` among them."""
    words: list[str] = call.args.command
    end = words.index("--") if "--" in words else len(words)
    yield from words[:end]
    for name in ("epochs", "batches"):
        value = getattr(call.args, name)
        if value is not None:
            yield from (f"--{name}", str(value))
    if call.args.sync_ms is not None:
        raise UsageError("--sync-ms goes with --simulate", hint="fdl plan train --simulate 40,100")
    yield from words[end:]


def _simulate(call: Call) -> int:
    """Start the prediction with what was typed, and with the manifest's lengths otherwise."""
    from fdl.commands.module import start
    from fdl.dispatch.compose import join
    from fdl.inspect.command import look_at

    command = look_at(call, join(call.args.command))
    simulated = [f"{one:g}" for one in call.args.simulate]
    arguments = ["--simulate", ",".join(simulated)]
    if call.args.sync_ms is not None:
        arguments += ["--sync-ms", f"{call.args.sync_ms:g}"]
    for name, field in (("batches", "batches_per_epoch"), ("epochs", "epochs")):
        value = getattr(call.args, name)
        if value is None:
            value = _training(command, field)
        if value is not None:
            arguments += [f"--{name}", str(value)]
    return start(call, GHOST, [*arguments, *(["--json"] if call.args.json else [])])


def _training(command: Command, field: str) -> int | None:
    """A whole number of the command's ``training`` settings, or None."""
    found = [one.value for one in command.fields if one.path == ("training", field)]
    return found[0] if found and isinstance(found[0], int) else None
