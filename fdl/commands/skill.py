"""``fdl skill``: texts that teach a coding assistant to work with flodl."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fdl import output
from fdl.skill import SKILLS, TOOLS, choose, detected, find
from fdl.skill import install as write

if TYPE_CHECKING:
    from fdl.app import Call
    from fdl.skill import Tool


def list_(_call: Call) -> int:
    """Print the skills, and the assistants with their places."""
    found = detected(Path.cwd())
    wide = max(len(name) for name in [*SKILLS, *(tool.name for tool in TOOLS)])
    lines = ["Skills:"]
    lines += [f"  {name:<{wide}}  {about}" for name, about in SKILLS.items()]
    lines += ["", "Tools:"]
    for tool in TOOLS:
        here = "  (found here)" if tool in found else ""
        lines.append(f"  {tool.name:<{wide}}  {tool.place}{here}")
    output.write(sys.stdout, "\n".join(lines) + "\n")
    return 0


def install(call: Call) -> int:
    """Write a skill for the assistants of this folder.

    Raises:
        FdlError: There is no such skill or tool, or a file cannot be written.
    """
    root = Path.cwd()
    skill = find(call.args.skill, root)
    files = write(skill, _tools(call.args.tool, root), root, dry_run=call.dry_run)
    verb = "would write" if call.dry_run else "wrote"
    for file in files:
        shown = file.path.relative_to(root).as_posix()
        if file.content is None:
            output.note(f"{shown} has the skill already; nothing to write")
        else:
            output.write(sys.stdout, f"{verb} {shown}\n")
    return 0


def _tools(name: str | None, root: Path) -> list[Tool]:
    if name is not None:
        return [choose(name)]
    found = detected(root)
    if not found:
        output.note(f"no assistant has left traces here; taking {TOOLS[0].name}")
    return found or [TOOLS[0]]
