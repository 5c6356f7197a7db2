"""Every command of a project, depth first. Broken commands are reported, not raised."""

from __future__ import annotations

import os

from fdl.base.errors import FdlError
from fdl.manifest.select.classify import PATH, PRESET
from fdl.manifest.select.level import Level, enter, require_entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from fdl.manifest.load import Manifest
    from fdl.manifest.node import Node

BROKEN = "broken"


class Entry:
    """One command of a manifest.

    Attributes:
        names: The words to type after ``fdl``.
        kind: ``run``, ``path``, ``preset`` or ``broken``.
        description: Its own; for a path command, that of the manifest behind it.
        spec: Its entry under ``commands:``.
        reason: Why a broken command cannot run, in the words of the error; else empty.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        kind: str,
        spec: Node,
        description: str | None = None,
        reason: str = "",
    ) -> None:
        self.names = names
        self.kind = kind
        self.description = description or spec.text("description")
        self.spec = spec
        self.reason = reason


def survey(
    project: Level, load: Callable[[str], Manifest | None], built_in: Collection[str] = ()
) -> Iterator[Entry]:
    """All commands in file order, each followed by the commands below it.

    A folder that leads back to itself is entered once on each path. The project cannot use the
    names in ``built_in``.
    """
    # An explicit stack: a chain of folders may be longer than Python's recursion limit.
    way = [(project, iter(project.commands), os.path.realpath(project.manifest.directory))]
    while way:
        level, names, _ = way[-1]
        name = next(names, None)
        if name is None:
            way.pop()
            continue
        if name in built_in and not level.names:
            reason = f"fdl has a built-in command `{name}`; rename this one"
            yield Entry((name,), BROKEN, level.commands[name], reason=reason)
            continue
        entry, below = _look_at(level, name, load)
        yield entry
        if below is not None:
            directory = os.path.realpath(below.manifest.directory)
            if all(directory != entered for _, _, entered in way):
                way.append((below, iter(below.commands), directory))


def _look_at(
    level: Level, name: str, load: Callable[[str], Manifest | None]
) -> tuple[Entry, Level | None]:
    """One command, and the level that it opens if it is a path command."""
    spec, names = level.commands[name], (*level.names, name)
    try:
        kind = level.kind(name)
        if kind == PATH:
            below = enter(level, name, load)
            return Entry(names, kind, spec, below.description), below
        if kind == PRESET:
            require_entry(level, name)
        return Entry(names, kind, spec), None
    except FdlError as problem:
        return Entry(names, BROKEN, spec, reason=problem.message), None
