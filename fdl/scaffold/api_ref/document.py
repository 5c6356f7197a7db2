"""The reference as JSON and as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

from fdl.base.output import Palette, json_text
from fdl.scaffold.api_ref.entries import Entry
from fdl.scaffold.api_ref.select import Name

SCHEMA_VERSION = 1


def as_json(version: str, entries: Sequence[Entry]) -> str:
    """One document: ``schema_version``, ``version`` and ``types``, an object per entry."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "version": version,
        "types": [asdict(entry) for entry in entries],
    }
    return json_text(document)


def as_list(names: Sequence[Name], palette: Palette) -> str:
    """One line per name, below their categories."""
    width = max((len(one.path) for one in names), default=0)
    lines = []
    for category, group in groupby(names, key=lambda one: one.entry.category):
        lines += ["", palette.bold(category)]
        lines += [f"  {palette.cyan(f'{one.path:<{width}}')}  {one.doc}".rstrip() for one in group]
    return "\n".join(lines) + "\n"


def as_text(name: Name, palette: Palette) -> str:
    """All about one name."""
    entry, one = name.entry, name.signature
    place = palette.dim(f"{entry.file}:{entry.line}")
    if one is not None:
        call = one.sig[one.sig.find(one.name) + len(one.name) :]
        text = textwrap.indent(one.docstring, "    ")
        return f"{palette.cyan(name.path)}{call}  {place}\n" + (f"\n{text}\n" if text else "")
    bases = f"({', '.join(entry.traits)})" if entry.traits else ""
    lines = [f"{palette.cyan(name.path)}{bases}  {place}", ""]
    lines += [textwrap.indent(entry.docstring, "    "), ""] if entry.docstring else []
    for member in (*entry.constructors, *entry.methods):
        lines.append(f"    {member.sig}")
        lines += [palette.dim(f"        {member.doc}")] if member.doc else []
    return "\n".join(lines) + "\n"
