"""``fdl warm``: keep a process with torch loaded, which starts the project's programs."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from fdl import output
from fdl.commands.verb import Call, Group, Json, Verb
from fdl.errors import FdlError, UsageError
from fdl.select.classify import PRESET

if TYPE_CHECKING:
    from fdl.plan import Plan
    from fdl.select.level import Level
    from fdl.select.project import Project
    from fdl.warm.start import Kept, Running

verbs = Group()


class Action(StrEnum):
    """What is done with the warm processes of a project."""

    START = "start"
    STATUS = "status"
    STOP = "stop"


@verbs.command("warm", cls=Verb)
def warm(
    ctx: typer.Context,
    action: Annotated[
        Action, typer.Argument(help="Start the process, show what it does, or end it")
    ] = Action.START,
    idle: Annotated[
        float, typer.Option("--idle", help="Minutes without a start after which it ends")
    ] = 30,
    json: Json = False,
) -> int:
    """Keep torch loaded in the background, so that programs start at once.

    One process for each interpreter imports what the programs import, and is forked for each start.

    Raises:
        FdlError: The project has no program that it could start, or the system is not Linux.
        UsageError: The time is not positive.
    """
    call: Call = ctx.obj
    project = call.project()
    if action == Action.STATUS:
        return _status(project, as_json=json)
    if json:
        raise UsageError("only `fdl warm status` prints JSON", hint="fdl warm status --json")
    if action == Action.STOP:
        return _stop(project)
    if idle <= 0:
        raise UsageError("`--idle` takes a positive number of minutes", hint="fdl warm --idle 30")
    if not sys.platform.startswith("linux"):
        raise FdlError(
            "`fdl warm` needs Linux, whose kernel says what two processes have in common",
            hint="commands start as usual here",
        )
    return _start(call, project, idle * 60)


def _start(call: Call, project: Project, idle_s: float) -> int:
    from fdl.warm.start import alone, groups, running, start

    found = groups(_plans(call, project), os.environ)
    if not found:
        raise FdlError(
            f"{project.found.path}: no command has an `entry` that is a Python program",
            hint="`entry: python train.py` in the manifest of a command",
        )
    with alone(project.directory):
        known = {one.interpreter: one for one in running(project.directory)}
        for interpreter, plans in found.items():
            if interpreter in known:
                output.write(sys.stdout, f"already running: {_line(known[interpreter])}\n")
                continue
            output.note(f"importing what the programs of {project.directory} import")
            _say(start(interpreter, plans, project.found.path, os.environ, idle_s), project)
    return 0


def _plans(call: Call, project: Project) -> list[Plan]:
    """The plan of each program of the project, as its command without arguments."""
    from fdl.schema.catalog import programs

    found = []
    for one in programs(project.level(), project.child):
        if one.level is not None and one.level.entry is not None:
            try:
                found += _plan(call, project, one.level)
            except FdlError as problem:
                output.note(f"`{one.level.typed()}` is left out: {problem.message}")
    return found


def _plan(call: Call, project: Project, level: Level) -> list[Plan]:
    """The plan of a program, by its command or else its first preset; none without either."""
    from fdl.planning.command import plan_of

    presets = [name for name in level.commands if level.kind(name) == PRESET]
    # The program of the project itself has no word of its own.
    for words in (level.names, *((*level.names, name) for name in presets)):
        selected = project.select(words)
        if selected.runs:
            return [plan_of(selected, project, call.invocation, call.here())]
    return []


def _say(kept: Kept, project: Project) -> None:
    from fdl.warm.start import running

    now = next((one for one in running(project.directory) if one.status["pid"] == kept.pid), None)
    names = ", ".join(f"`fdl {one}`" for one in kept.commands)
    output.write(
        sys.stdout,
        f"{project.directory}: warm process for {names}\n" + (f"{_line(now)}\n" if now else ""),
    )
    for module, why in kept.left_out.items():
        output.note(f"`{module}` is imported at each start: {why}")


def _status(project: Project, *, as_json: bool) -> int:
    from fdl.warm.start import running

    found = running(project.directory)
    if as_json:
        output.print_json([{"interpreter": one.interpreter, **one.status} for one in found])
        return 0
    if not found:
        output.note(f"{project.directory} has no warm process; `fdl warm` starts one")
    for one in found:
        output.write(sys.stdout, f"{_line(one)}\n")
        if one.status["last_cold"]:
            output.write(sys.stdout, f"last start without it: {one.status['last_cold']}\n")
    return 0


def _stop(project: Project) -> int:
    from fdl.warm.start import stop

    count = stop(project.directory)
    if count:
        output.write(sys.stdout, f"ended {count} warm process{'es' if count > 1 else ''}\n")
    else:
        output.note(f"{project.directory} has no warm process")
    return 0


def _line(one: Running) -> str:
    from fdl.run_directory.text import duration

    status = one.status
    return (
        f"{one.interpreter}: process {status['pid']}, {status['memory'] / 1e6:.0f} MB, "
        f"{status['starts']} starts, {status['running']} running, "
        f"ends after {duration(int(status['ends_after_s']))} without a start"
    )
