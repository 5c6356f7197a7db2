"""Which built-in commands leave their name to a command of the project. On the warm path."""

from __future__ import annotations

from fdl.base.errors import FdlError
from fdl.manifest.builtins import JOINING, YIELDING
from fdl.manifest.select.project import base_commands

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.manifest.discover import Found


def steps_back(name: str, found: Found | None, following: Sequence[str] = ()) -> bool:
    """Whether a built-in command leaves its name to a command of the project.

    A manifest that cannot be read has no command. ``following`` are the words after the name.
    """
    if name not in YIELDING or found is None:
        return False
    try:
        defined = name in base_commands(found, write_cache=False)
    except FdlError:
        return False
    if not defined or name not in JOINING:
        return defined
    from fdl.manifest.select.bundle import leaves_to_project

    try:
        return leaves_to_project(name, found, following)
    except FdlError:
        # The project's way to the command tells what is wrong with it.
        return True
