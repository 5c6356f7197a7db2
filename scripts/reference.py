#!/usr/bin/env python3
"""Write docs/reference: the built-in commands, the keys of a manifest, Python names, JSON Schemas.

``reference.py`` writes the files, ``reference.py --check`` fails when one is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import diagnose_schema
import python_pages

from fdl.base.output import Palette
from fdl.cli import builtins
from fdl.cli.help import render
from fdl.manifest import json_schema as manifest
from fdl.manifest.builtins import BUILTINS
from fdl.plan.generate import FIELDS
from fdl.programs.parameters.parser import label, notes

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
WIDTH = 80
PLAIN = Palette(False)

INTRODUCTION = """\
# Commands of fdl

Made by `python scripts/reference.py` from the commands themselves; do not edit.

A word after `fdl` is first taken for a built-in command, then for a command of the project's
[manifest](../guide/manifest.md).
"""

EXIT_CODES = """\
## Exit codes

| code | meaning |
|---|---|
| 0 | success; help that was asked for |
| 1 | fdl could not do it: a broken manifest, an unknown command, a file that cannot be written |
| 2 | arguments that a built-in command or a program refuses |
| 128 + n | the program was ended by signal n; 130 after Ctrl-C |
| other | the program's own |
"""


KEYS = """\
# Keys of a manifest

Made by `python scripts/reference.py` from what fdl checks; do not edit. The
[guide](../guide/manifest.md) explains how they work together.
[fdl.schema.json](fdl.schema.json) is the JSON Schema for your editor.

A key that is absent or null sets nothing. A key that is not in these tables is an error. The
exception is a mapping below `training`: `optim: {lr: 0.1}` becomes `--optim.lr 0.1`.
"""

SECTIONS = (
    ("Manifest", "", ""),
    ("Command", "Command", ""),
    ("`ddp`", "Ddp", "ddp"),
    ("`ddp.speed_hint`", "SpeedHint", ""),
    ("`training`", "Training", "training"),
    ("`training.guards`", "Guards", ""),
    ("`output`", "Output", "output"),
    ("`slurm`", "Slurm", ""),
    ("One of `sweeps`", "Sweep", ""),
)


def manifest_page() -> str:
    """The keys of every mapping in a manifest, as tables."""
    document = manifest.document()
    parts = [KEYS]
    for title, name, section in SECTIONS:
        model = document["$defs"][name] if name else document
        flags = {field: flag for home, field, flag in FIELDS if home == section}
        head = "| key | value | flag |" if flags else "| key | value |"
        rows = [head, "|---" * (head.count("|") - 1) + "|"]
        for key, rule in model["properties"].items():
            cells = [f"`{key}`", f"{rule['description']} {_values(rule)}".rstrip()]
            if flags:
                # A key without a flag reaches the program in a variable.
                cells.append(f"`{flags[key]}`" if key in flags else "")
            rows.append(f"| {' | '.join(cells)} |")
        parts.append(f"## {title}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _values(rule: dict[str, Any]) -> str:
    """The type of a value, or the words it may be."""
    if "enum" in rule:
        return "One of " + ", ".join(f"`{word}`" for word in rule["enum"]) + "."
    variants = [one for one in rule.get("anyOf", []) if one.get("type") != "null"]
    if len(variants) == 1:
        return _values(variants[0])
    return ""


def commands_page() -> str:
    """The built-in commands with their help pages."""
    # The first line of the page names the version.
    _, _, overview = render(None, None, PLAIN, WIDTH).partition("\n\n")
    parts = [INTRODUCTION, f"```text\n{overview}```\n"]
    for name in BUILTINS:
        parts += sections(name)
    return "\n".join([*parts, EXIT_CODES])


def sections(*names: str) -> Iterator[str]:
    """The sections of a command and of all below it."""
    schema, below = builtins.schema(names), builtins.children(names)
    yield f"{'#' * (len(names) + 1)} fdl {' '.join(names)}\n"
    yield f"{schema.description}\n\n```text\n{builtins.usage(names)}\n```\n"
    rows = [(f"`{one}`", builtins.summary(*names, one), "") for one in below] or [
        (f"`{(label(one) if one.kind == 'option' else one.display).strip()}`", one.help, notes(one))
        for one in schema.parameters
    ]
    if rows:
        head = "| command | |" if below else "| argument | |"
        cells = [f"| {name} | {' '.join(filter(None, words))} |" for name, *words in rows]
        yield "\n".join([head, "|---|---|", *cells, ""])
    for child in below:
        yield from sections(*names, child)


def main() -> int:
    """Write or check the files; the exit code is 1 when a check finds one out of date."""
    files = {
        "commands.md": commands_page(),
        "manifest.md": manifest_page(),
        "python.md": python_pages.index(),
        "fdl.schema.json": manifest.as_json(),
        "diagnose.schema.json": diagnose_schema.as_json(),
    }
    for name, text in files.items():
        file = FOLDER / name
        if "--check" not in sys.argv[1:]:
            FOLDER.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            sys.stderr.write(
                f"error: docs/reference/{name} is out of date\nrun: python scripts/reference.py\n"
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
