"""``fdl ddp-bench``: the comparison of the ways to train on several devices.

The bench is a program of flodl with a manifest of its own beside it, so presets, help and
completion are those of any other command.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fdl import output
from fdl.commands.module import carry_out, interpreter, start
from fdl.errors import FdlError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdl.app import Call
    from fdl.dispatch.planner import Surroundings
    from fdl.dispatch.walk import Level
    from fdl.plan import Plan
    from fdl.schema.contract import Schema

NAME = "ddp-bench"
MODULE = "flodl.ddp_bench"
_FOLDER = Path(*MODULE.split("."))
_REFRESH = "--refresh-schema"


def ddp_bench(call: Call) -> int:
    """Start the bench, with a preset or without.

    Returns:
        Its exit code.

    Raises:
        FdlError: The manifest of the bench is broken, or Python cannot be started.
    """
    found = level(call.here().variables)
    arguments: list[str] = call.args.arguments
    if found is None:
        if call.invocation.help:
            raise FdlError(
                "flodl is not installed where fdl looks for it", hint='pip install "flodl[train]"'
            )
        return start(call, MODULE, arguments)
    if call.invocation.help:
        return _show_help(found, arguments, call.here())
    if _REFRESH in arguments:
        from fdl.commands.schema import refresh_one

        return refresh_one(found, call.here(), dry_run=call.dry_run)
    return carry_out(call, _plan(call, found, arguments))


def level(variables: Mapping[str, str]) -> Level | None:
    """The bench as a command, or None where flodl is not installed.

    Args:
        variables: The environment variables, which may name the environment in use.
    """
    from fdl.dispatch.walk import Level
    from fdl.manifest import find_in, load
    from fdl.venv import project_prefix, site_packages

    prefix = project_prefix(str(Path.cwd()), variables)
    beside = Path(__file__).resolve().parents[2]
    for packages in (*map(Path, site_packages(prefix)), beside):
        found = find_in(str(packages / _FOLDER))
        if found is not None:
            made = Level(load(found, write_cache=False), (NAME,), str(packages), None)
            if made.entry is not None:
                python, *words = shlex.split(str(made.entry.value))
                python = interpreter(str(Path.cwd()), variables) if python == "python" else python
                made.entry = made.entry.at(shlex.join([python, *words]))
            return made
    return None


def _plan(call: Call, bench: Level, arguments: list[str]) -> Plan:
    from fdl.dispatch.planner import Planner, hand_down
    from fdl.manifest import origin
    from fdl.schema import known

    preset = _preset(bench, arguments)
    tail = arguments[1:] if preset else arguments
    here, around = str(Path.cwd()), call.here()
    # The bench starts its ranks itself: it compares launches of different kinds in one call.
    planner = Planner(here, around, call.invocation.exported(), append=True, distributes=False)
    plan = planner.entry(bench, preset, tail, known(bench))
    plan.cwd = here
    if bench.entry is not None:
        plan.origin = origin(bench.entry, bench.root)
    hand_down(plan)
    return plan


def _preset(bench: Level, arguments: list[str]) -> str | None:
    """The preset that the first word names, or None."""
    from fdl.dispatch.classify import PRESET

    name = arguments[0] if arguments else ""
    return name if name in bench.commands and bench.kind(name) == PRESET else None


def _show_help(bench: Level, arguments: list[str], surroundings: Surroundings) -> int:
    from fdl.dispatch.classify import PRESET
    from fdl.dispatch.walk import Help
    from fdl.help import render, terminal_width
    from fdl.project import Project
    from fdl.schema import learn

    def ask(level: Level) -> Schema | None:
        return learn(level, surroundings)

    preset = _preset(bench, arguments)
    page = Help(bench, PRESET, preset) if preset else Help(bench)
    project = Project(bench.manifest.found)
    width = terminal_width(sys.stdout)
    output.write(sys.stdout, render(page, project, output.palette(sys.stdout), width, ask))
    return 0
