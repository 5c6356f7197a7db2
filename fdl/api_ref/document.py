"""The reference as JSON and as text."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby

from fdl.api_ref.entries import Entry, Reference, Signature
from fdl.output import Palette

SCHEMA_VERSION = 1


def as_json(reference: Reference) -> str:
    """One document: ``schema_version``, ``version`` and ``types``, an object per entry."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "version": reference.version,
        "types": [asdict(entry) for entry in reference.entries],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_text(reference: Reference, title: str, palette: Palette) -> str:
    """Categories, below them the entries with what they offer.

    Args:
        reference: What to show.
        title: The first line.
        palette: The styles of the stream it goes to.
    """
    lines = [palette.bold(title)]
    for category, entries in groupby(reference.entries, key=lambda one: one.category):
        lines += ["", palette.bold(category)]
        for entry in entries:
            lines += ["", *_entry(entry, palette)]
    return "\n".join(lines) + "\n"


def _entry(entry: Entry, palette: Palette) -> Iterator[str]:
    bases = f"({', '.join(entry.traits)})" if entry.traits else ""
    place = palette.dim(f"{entry.file}:{entry.line}")
    name = entry.name.removesuffix(" (functions)")
    if name == entry.name:
        yield f"  {palette.cyan(f'{entry.module}.{name}')}{bases}  {place}"
    else:
        yield f"  {palette.cyan(entry.name)}  {place}"
    if entry.doc:
        yield f"    {entry.doc}"
    for one in (*entry.constructors, *entry.methods):
        yield from _signature(one, palette)
    for example in entry.examples:
        yield ""
        yield textwrap.indent(example, " " * 6)


def _signature(one: Signature, palette: Palette) -> Iterator[str]:
    yield f"    {one.sig}"
    if one.doc:
        yield palette.dim(f"        {one.doc}")
