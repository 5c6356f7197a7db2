"""``fdl skill``: texts that teach a coding assistant to work with flodl."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.cli.commands.verb import DryRun, Group, Verb
from fdl.scaffold.skill import SKILLS, TOOLS, choose, detected, find, install as write

if TYPE_CHECKING:
    from fdl.scaffold.skill import Tool

verbs = Group("skill", "Teach a coding assistant to port models to flodl.")


@verbs.command("list", cls=Verb)
def list_() -> int:
    """List the skills and where they can go."""
    from fdl.base.tables import headed, table

    found = detected(Path.cwd())
    tools = [(one.name, one.place, "(found here)" if one in found else "") for one in TOOLS]
    output.show(
        headed(
            [
                ("Skills:", table(SKILLS.items(), styles=("cyan",), wrap=(1,))),
                ("Tools:", table(tools, styles=("cyan",))),
            ]
        )
    )
    return 0


@verbs.command("install", cls=Verb)
def install(
    tool: Annotated[
        str | None, typer.Option(help="claude or cursor (default: those found in this folder)")
    ] = None,
    skill: Annotated[str, typer.Option(help="Name of the skill")] = "port",
    dry_run: DryRun = False,
) -> int:
    """Write a skill to the place where a coding assistant finds it.

    Raises:
        FdlError: There is no such skill or tool, or a file cannot be written.
    """
    root = Path.cwd()
    files = write(find(skill, root), _tools(tool, root), root, dry_run=dry_run)
    verb = "would write" if dry_run else "wrote"
    for file in files:
        shown = file.path.relative_to(root).as_posix()
        if file.content is None:
            output.note(f"{shown} has the skill already; nothing to write")
            continue
        output.write(sys.stdout, f"{verb} {shown}\n")
        if file.edited:
            output.note(f"{file.edited.name} was edited, so it stays; compare it with {shown}")
    return 0


def _tools(name: str | None, root: Path) -> list[Tool]:
    if name is not None:
        return [choose(name)]
    found = detected(root)
    if not found:
        output.note(f"found no coding assistant in this folder; taking {TOOLS[0].name}")
    return found or [TOOLS[0]]
