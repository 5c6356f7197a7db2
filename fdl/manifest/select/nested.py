"""The folders below a project, and the environments that only they have: ``train/fdl.ci.yml``."""

from __future__ import annotations

import os

from fdl.base.errors import FdlError, SelectionError
from fdl.manifest.layers import environments, overlay_file
from fdl.manifest.node import relative
from fdl.manifest.select.classify import PATH
from fdl.manifest.select.level import enter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fdl.manifest.load import Manifest
    from fdl.manifest.select.level import Level


class Place:
    """A path command, and the folder that it leads to.

    Attributes:
        names: The words of the command.
        directory: The folder; empty if the command contradicts itself.
        level: What the command opens; None if its manifest cannot be read.
        problem: Why it cannot be read.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.directory = ""
        self.level: Level | None = None
        self.problem: FdlError | None = None

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
