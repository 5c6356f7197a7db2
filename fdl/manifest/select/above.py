"""The project that a folder with a manifest of its own belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fdl.base.errors import FdlError
from fdl.manifest.discover import find
from fdl.manifest.load import load

if TYPE_CHECKING:
    from fdl.manifest.select.level import Level


def of_the_project_above(level: Level, word: str) -> str:
    """The hint that a word is a command of the project above; empty if it is not."""
    try:
        found = find(str(Path(level.root).parent))
        commands = load(found, write_cache=False).node.get("commands") if found else None
    except FdlError:
        return ""
    if found is None or commands is None or word not in commands.mapping:
        return ""
    return f"`{word}` is a command of the project in {found.directory}: type it there"
