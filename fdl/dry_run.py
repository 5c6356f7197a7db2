"""``--dry-run``: a Plan as text for people and as JSON for programs."""

from __future__ import annotations

import json
import os

from fdl.dispatch.compose import join, quote
from fdl.output import Palette
from fdl.plan import Plan


def as_json(plan: Plan) -> str:
    """One JSON document, with ``schema_version``."""
    return json.dumps(plan.as_dict(), indent=2) + "\n"


def as_text(plan: Plan, palette: Palette) -> str:
    """Labelled lines; every command line in them can be pasted into a shell."""
    preset = f", preset {plan.preset}" if plan.preset else ""
    rows = [
        ("command", " ".join(["fdl", *plan.command])),
        ("kind", f"{plan.kind}{preset}"),
        ("defined", plan.origin),
        ("cwd", plan.cwd),
    ]
    if plan.service:
        rows += [("service", plan.service), ("inside", plan.launch[-1])]
    rows.append(("argv", join(plan.launch)))
    rows += [("env", _assignment(name, value)) for name, value in plan.env.items()]
    lines, last = [], ""
    for label, value in rows:
        shown = "" if label == last else label
        lines.append(f"{palette.bold(f'{shown:<9}')} {value}")
        last = label
    return "\n".join([*lines, *_flags(plan, palette)]) + "\n"


def _assignment(name: str, value: str) -> str:
    if name == "FDL_PLAN":
        return "FDL_PLAN=(this plan as JSON)"
    inherited = os.environ.get(name)
    if name == "PATH" and inherited and value.endswith(os.pathsep + inherited):
        return f'PATH={quote(value[: -len(inherited)])}"$PATH"'
    return f"{name}={quote(value)}"


def _flags(plan: Plan, palette: Palette) -> list[str]:
    """One line per generated flag: tokens, manifest field, origin."""
    table = [
        (join(plan.argv[flag.index : flag.index + flag.count]), flag.field, flag.origin)
        for flag in plan.flags
    ]
    wide = max((len(tokens) for tokens, _, _ in table), default=0)
    field_wide = max((len(field) for _, field, _ in table), default=0)
    lines = []
    for place, (tokens, field, where) in enumerate(table):
        label = palette.bold(f"{'' if place else 'flags':<9}")
        lines.append(f"{label} {tokens:<{wide}}  {field:<{field_wide}}  {palette.dim(where)}")
    return lines
