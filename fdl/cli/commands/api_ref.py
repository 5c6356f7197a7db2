"""``fdl api-ref``: the reference of flodl's classes and functions."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fdl.base import output
from fdl.cli.commands.verb import Group, Json, Verb
from fdl.scaffold.api_ref.scan import find, scan
from fdl.scaffold.api_ref.select import as_json, as_list, as_text, public, select

verbs = Group()


@verbs.command("api-ref", cls=Verb)
def api_ref(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Class, function, method or module to show: `Trainer`, `Trainer.builder`, "
            "`flodl.nn` (default: list the public names)"
        ),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option(help="Project folder or package to read, instead of the nearest flodl"),
    ] = None,
    json: Json = False,
) -> int:
    """List flodl's public classes and functions, or show one of them.

    Files that cannot be read are left out. It needs griffe: `pip install 'flodl[api-ref]'`.

    Raises:
        FdlError: The source was not found, or it has no class, function or module of this name.
    """
    package = find(path, Path.cwd(), os.environ)
    reference = scan(package)
    output.warnings(reference.problems)
    names = select(reference, name) if name else public(reference)
    if json:
        entries = [one.alone for one in names] if name else reference.entries
        text = as_json(reference.version, entries)
    else:
        palette = output.palette(sys.stdout)
        if name and len({one.path for one in names}) == 1:
            text = "\n".join(as_text(one, palette) for one in names)
        else:
            title = f"{package.name} {reference.version}, read from {package}"
            text = f"{palette.bold(title)}\n{as_list(names, palette)}"
    output.write(sys.stdout, text)
    return 0
