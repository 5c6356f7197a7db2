"""``fdl ddp-bench``: the comparison of the ways to train on several devices.

The bench is a program of flodl with a manifest of its own beside it, so presets, help and
completion are those of any other command.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.cli.commands import bundled
from fdl.cli.commands.module import run_or_show, start
from fdl.cli.commands.verb import Call, Group, Program
from fdl.manifest.node import origin
from fdl.manifest.select import bundle
from fdl.manifest.select.command import REFRESH
from fdl.plan.planner import Planner

if TYPE_CHECKING:
    from fdl.manifest.select.level import Level
    from fdl.plan.value import Plan

verbs = Group()

NAME = "ddp-bench"


@verbs.command("ddp-bench", cls=Program)
def ddp_bench(
    ctx: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="A preset, and options of the benchmark"),
    ] = None,
) -> int:
    """Compare the ways to train on several GPUs.

    Returns:
        Its exit code.

    Raises:
        FdlError: The manifest of the bench is broken, or Python cannot be started.
    """
    call: Call = ctx.obj
    found = bundle.level(NAME, call.here().variables)
    words = arguments or []
    if found is None:
        if call.invocation.help:
            raise bundled.not_installed()
        return start(call, NAME, bundle.MODULES[NAME], words, dry_run=call.dry_run)
    if call.invocation.help:
        from fdl.manifest.select.classify import PRESET
        from fdl.manifest.select.command import LEVEL, Selection

        preset, word = _preset(found, words), call.invocation.help_word
        kind = PRESET if preset else LEVEL
        page = Selection(found, kind, preset or "", page=True, group=word)
        return bundled.show(page, call.here())
    if REFRESH in words:
        from fdl.cli.commands.schema import refresh_one

        return refresh_one(found, call.here(), dry_run=call.dry_run)
    plan = _plan(call, found, words)
    return run_or_show(plan, dry_run=call.dry_run, json=call.invocation.json)


def _plan(call: Call, bench: Level, words: list[str]) -> Plan:
    from fdl.programs.schema import known

    preset = _preset(bench, words)
    tail = words[1:] if preset else words
    here, around = str(Path.cwd()), call.here()
    # The bench starts its ranks itself: it compares launches of different kinds in one call.
    planner = Planner(here, around, call.invocation.exported(), append=True, distributes=False)
    plan = planner.entry(bench, preset, tail, known(bench))
    if bench.entry is not None:
        plan.origin = origin(bench.entry, bench.root)
    return bundled.moved(plan, here)


def _preset(bench: Level, arguments: list[str]) -> str | None:
    """The preset that the first word names, or None."""
    from fdl.manifest.select.classify import PRESET

    name = arguments[0] if arguments else ""
    return name if name in bench.commands and bench.kind(name) == PRESET else None
