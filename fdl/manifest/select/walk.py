"""The commands of a project, and the folders below it with their overlays."""

from __future__ import annotations

import os

from fdl.base.errors import FdlError, SelectionError
from fdl.base.light_record import Record
from fdl.manifest.layers import environments, overlay_file
from fdl.manifest.node import relative
from fdl.manifest.select.level import PATH, PRESET, Level, enter, require_entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from fdl.manifest.load import Manifest
    from fdl.manifest.node import Node


class Place(Record):
    """A path command, and the folder that it leads to.

    Attributes:
        names: The words of the command.
        directory: The folder; empty if the command contradicts itself.
        level: What the command opens; None if its manifest cannot be read.
        problem: Why it cannot be read.
    """

    names: tuple[str, ...]
    directory: str = ""
    level: Level | None = None
    problem: FdlError | None = None

    @property
    def overlays(self) -> dict[str, str]:
        """Environment -> the overlay in the folder."""
        names = environments(self.directory) if self.directory else []
        return {name: overlay_file(self.directory, name) or "" for name in names}


def below(project: Level, load: Callable[[str], Manifest | None]) -> Iterator[Place]:
    """Every path command of a project, parents before children.

    A folder counts once for every program that commands start in it. Where ``load`` gives None,
    the search goes no deeper.
    """
    waiting, seen = [project], {_identity(project)}
    while waiting:
        level, opened = waiting.pop(), []
        for name in level.commands:
            place = Place((*level.names, name))
            try:
                if level.kind(name) != PATH:
                    continue
                place.directory = level.child_directory(name)
                place.level = enter(level, name, load)
                identity = _identity(place.level)
                if identity in seen:
                    continue
                seen.add(identity)
                opened.append(place.level)
            except FdlError as problem:
                place.problem = problem
            yield place
        waiting += reversed(opened)


def misplaced(env: str, what: str, known: Sequence[Place], root: str) -> SelectionError:
    """The error for an environment whose overlays do not concern what was asked for.

    ``known`` are the folders that have an overlay of it; at least one.
    """
    files = ", ".join(dict.fromkeys(relative(one.overlays[env], root) for one in known))
    return SelectionError(
        f"environment `{env}` has no overlay for {what}; it has only {files}",
        hint=f"fdl --env {env} {' '.join(known[0].names)}",
    )


def _identity(level: Level) -> tuple[str, str]:
    """The folder and the program of a level."""
    entry = level.entry
    folder = os.path.realpath(level.manifest.directory)
    return folder, f"{entry.file}:{entry.value}" if entry else ""


BROKEN = "broken"


class Entry(Record):
    """One command of a manifest.

    Attributes:
        names: The words to type after ``fdl``.
        kind: ``run``, ``path``, ``preset`` or ``broken``.
        description: Its own; for a path command, that of the manifest behind it.
        spec: Its entry under ``commands:``.
        reason: Why a broken command cannot run, in the words of the error; else empty.
    """

    names: tuple[str, ...]
    kind: str
    spec: Node
    description: str | None = None
    reason: str = ""

    def settle(self) -> None:
        """Take the description from the entry, if none was given."""
        self.description = self.description or self.spec.text("description")


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
