"""What a command starts where, as text for people and as JSON for programs: ``fdl plan``."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from fdl.base.hardware import nvidia
from fdl.base.shell_words import join, quote
from fdl.base.units import counted
from fdl.manifest.inspect.document import json_value
from fdl.plan.dry_run import labelled
from fdl.plan.ranks import DEVICES_VARIABLE, SETTINGS_VARIABLE, THREADS_VARIABLE
from fdl.plan.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fdl.base.output import Palette
    from fdl.manifest.inspect.field import Field
    from fdl.plan.inspect import Command
    from fdl.plan.value import Plan

SCHEMA_VERSION = 1

_VARIABLES = (DEVICES_VARIABLE, SETTINGS_VARIABLE, THREADS_VARIABLE)
_SECTIONS = ("ddp", "training", "output")
_CPU = "cpu"


def as_json(command: Command) -> dict[str, Any]:
    """The plan as JSON data."""
    plan = redacted(command.plan)
    least, most = plan.ranks.nodes if plan.ranks else (1, 1)
    return {
        "schema_version": SCHEMA_VERSION,
        "command": plan.command,
        "preset": plan.preset,
        "service": plan.service,
        "cwd": plan.cwd,
        "argv": plan.argv,
        "start": {
            "by": "torchrun" if plan.ranks else "fdl",
            "ranks_here": plan.ranks.here if plan.ranks else 1,
            "nodes": {"least": least, "most": most},
            "rdzv": plan.ranks.rdzv if plan.ranks else "",
            "max_restarts": plan.ranks.max_restarts if plan.ranks else 0,
        },
        "ranks": [
            {"node": "here", "host": platform.node(), "local_rank": place, "device": device}
            for place, device in enumerate(_devices(command, plan))
        ],
        "notes": plan.notes,
        "env": {
            one.name: {"value": one.value, "origin": one.origin}
            for one in plan.variables
            if one.name in _VARIABLES
        },
        "settings": [
            {"name": one.name, "value": json_value(one.value), "origin": _origin(one)}
            for one in _settings(command)
        ],
    }


def as_text(command: Command, palette: Palette) -> str:
    """Labelled lines: how it starts, each rank with its device, variables, settings."""
    plan = redacted(command.plan)
    rows = [
        ("command", " ".join(["fdl", *plan.command])),
        ("start", _start(plan)),
        ("cwd", plan.cwd),
        *([("service", plan.service)] if plan.service else []),
        ("argv", join(plan.argv)),
        *(("note", note) for note in plan.notes),
        *(("rank", one) for one in _rank_rows(command, plan)),
    ]
    variables = [
        (f"{one.name}={quote(one.value)}", one.origin)
        for one in plan.variables
        if one.name in _VARIABLES
    ]
    settings = [(f"{one.name}: {_flat(one.value)}", _origin(one)) for one in _settings(command)]
    rows += [("env", f"{text}  {origin}") for text, origin in variables]
    width = max((len(text) for text, _ in settings), default=0)
    rows += [("settings", f"{text:<{width}}  {palette.dim(origin)}") for text, origin in settings]
    return "\n".join(labelled(rows, palette)) + "\n"


def _start(plan: Plan) -> str:
    if plan.ranks is None:
        return "one process"
    here = counted(plan.ranks.here, "rank")
    least, most = plan.ranks.nodes
    where = "on this machine"
    if plan.ranks.rdzv:
        count = str(least) if least == most else f"{least} to {most}"
        where = f"on each of {count} machines, which meet at {plan.ranks.rdzv}"
    return f"{here} {where}, through torchrun, with up to {plan.ranks.max_restarts} restarts"


def _rank_rows(command: Command, plan: Plan) -> Iterator[str]:
    host = platform.node()
    for place, device in enumerate(_devices(command, plan)):
        yield f"{place}  {host}  {device}"
    if plan.ranks and plan.ranks.rdzv:
        yield "   the other machines: what the same command says there"


def _devices(command: Command, plan: Plan) -> list[str]:
    """What each rank of this machine trains on, by its number here."""
    if plan.ranks is not None:
        names = plan.ranks.gpus
        otherwise = "no GPU left" if names else _CPU
        return [names[one] if one < len(names) else otherwise for one in range(plan.ranks.here)]
    outside = {} if plan.service else command.host.variables
    visible = nvidia({**outside, **plan.env}).visible
    return [visible[0].name if visible else _CPU]


def _settings(command: Command) -> Sequence[Field]:
    return [one for one in command.fields if one.path[0] in _SECTIONS and not one.removed]


def _origin(field: Field) -> str:
    """Where a setting was written, and as what: ``train/fdl.yml:4:7 (preset quick)``."""
    top = field.top
    if not top.file:
        return top.source
    return f"{top.place} ({top.source})" if top.source.startswith("preset") else top.place


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
