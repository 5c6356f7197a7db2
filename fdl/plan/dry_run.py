"""``--dry-run``: a Plan as text for people and as JSON for programs, without its secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence

from fdl.base.masking import PLAN_VARIABLE
from fdl.base.output import Palette
from fdl.base.shell_words import join, quote
from fdl.manifest.node import Variable
from fdl.plan.redaction import redacted
from fdl.plan.value import SCHEMA_VERSION, Plan


def as_json(plan: Plan) -> str:
    """One JSON document, with ``schema_version``."""
    return json.dumps(redacted(plan).as_dict(), indent=2) + "\n"


def several_as_json(plans: Sequence[Plan], *, asked: int) -> str:
    """One document: of a command with those it needs under ``needs``, or of several ``jobs``."""
    documents = [redacted(plan).as_dict() for plan in plans]
    if asked == 1:
        document = {**documents[-1], "needs": documents[:-1]}
    else:
        document = {"schema_version": SCHEMA_VERSION, "jobs": documents}
    return json.dumps(document, indent=2) + "\n"


def as_text(plan: Plan, palette: Palette) -> str:
    """Labelled lines; the command lines in them can be pasted into a shell."""
    plan = redacted(plan)
    preset = f", preset {plan.preset}" if plan.preset else ""
    rows = [
        ("command", " ".join(["fdl", *plan.command])),
        ("kind", f"{plan.kind}{preset}"),
        ("defined", plan.origin),
        ("cwd", plan.cwd),
    ]
    if plan.service:
        rows += [("service", plan.service), ("inside", plan.launch[-1])]
    rows += [("argv", join(plan.launch)), *(("note", note) for note in plan.notes)]
    if plan.confirm:
        rows.append(("confirm", plan.confirm))
    lines = labelled(rows, palette)
    variables = [(_assignment(one), one.origin) for one in plan.variables]
    flags = [
        (
            join(plan.argv[flag.index : flag.index + flag.count]),
            flag.field,
            f"{flag.origin}  {flag.reference}".rstrip(),
        )
        for flag in plan.flags
    ]
    if flags and plan.typed:
        flags.append((join(plan.argv[-len(plan.typed) :]), "", "command line, wins"))
    lines += [*_table("env", variables, palette), *_table("flags", flags, palette)]
    return "\n".join(lines) + "\n"


def labelled(rows: Iterable[tuple[str, str]], palette: Palette) -> list[str]:
    """One line per value behind its label; a label that repeats is printed once."""
    lines, last = [], ""
    for label, value in rows:
        shown = "" if label == last else label
        lines.append(f"{palette.bold(f'{shown:<9}')} {value}")
        last = label
    return lines


def _assignment(variable: Variable) -> str:
    name, value = variable.name, variable.value
    if name == PLAN_VARIABLE:
        return f"{PLAN_VARIABLE}=(this plan as JSON)"
    inherited = os.environ.get(name)
    if name == "PATH" and inherited and value.endswith(os.pathsep + inherited):
        return f'PATH={quote(value[: -len(inherited)])}"$PATH"'
    return f"{name}={quote(value)}"


def _table(label: str, rows: Sequence[tuple[str, ...]], palette: Palette) -> list[str]:
    """One line per row, columns aligned; the last column is the origin."""
    # A long value would push every origin off the screen.
    widths = [min(max(map(len, column)), 48) for column in zip(*rows, strict=True)][:-1]
    lines = []
    for place, (*cells, where) in enumerate(rows):
        title = palette.bold(f"{'' if place else label:<9}")
        shown = "  ".join(f"{cell:<{wide}}" for cell, wide in zip(cells, widths, strict=True))
        lines.append(f"{title} {shown}  {palette.dim(where)}")
    return lines
