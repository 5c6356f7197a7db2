"""``fdl ddp-bench``: the comparison of the ways to train on several devices.

The bench is a program of flodl with a manifest of its own beside it, so presets, help and
completion are those of any other command.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fdl.commands import bundle
from fdl.commands.module import carry_out, start

if TYPE_CHECKING:
    from fdl.app import Call
    from fdl.dispatch.walk import Level
    from fdl.plan import Plan

NAME = "ddp-bench"
_REFRESH = "--refresh-schema"


def ddp_bench(call: Call) -> int:
    """Start the bench, with a preset or without.

    Returns:
        Its exit code.

    Raises:
        FdlError: The manifest of the bench is broken, or Python cannot be started.
    """
    found = bundle.level(NAME, call.here().variables)
    arguments: list[str] = call.args.arguments
    if found is None:
        if call.invocation.help:
            raise bundle.not_installed()
        return start(call, bundle.MODULES[NAME], arguments)
    if call.invocation.help:
        from fdl.dispatch.classify import PRESET
        from fdl.dispatch.walk import Help

        preset = _preset(found, arguments)
        return bundle.show(Help(found, PRESET, preset) if preset else Help(found), call.here())
    if _REFRESH in arguments:
        from fdl.commands.schema import refresh_one

        return refresh_one(found, call.here(), dry_run=call.dry_run)
    return carry_out(call, _plan(call, found, arguments))


def _plan(call: Call, bench: Level, arguments: list[str]) -> Plan:
    from fdl.dispatch.planner import Planner
    from fdl.manifest import origin
    from fdl.schema import known

    preset = _preset(bench, arguments)
    tail = arguments[1:] if preset else arguments
    here, around = str(Path.cwd()), call.here()
    # The bench starts its ranks itself: it compares launches of different kinds in one call.
    planner = Planner(here, around, call.invocation.exported(), append=True, distributes=False)
    plan = planner.entry(bench, preset, tail, known(bench))
    if bench.entry is not None:
        plan.origin = origin(bench.entry, bench.root)
    return bundle.moved(plan, here)


def _preset(bench: Level, arguments: list[str]) -> str | None:
    """The preset that the first word names, or None."""
    from fdl.dispatch.classify import PRESET

    name = arguments[0] if arguments else ""
    return name if name in bench.commands and bench.kind(name) == PRESET else None
