"""Where the values of a built-in's arguments come from: the project.

A parameter of :mod:`fdl.commands.registry` names one of these as its ``completer``.
"""

# pathlib would double the start-up time of a completion.
# ruff: noqa: PTH119
from __future__ import annotations

import os

from fdl.errors import FdlError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fdl.dispatch.walk import Level
    from fdl.project import Project

    Values = Iterable[tuple[str, str]]
    Source = Callable[["Asked"], Values]


class Asked:
    """One question for values.

    Attributes:
        project: The project under the active environment.
        before: The positional words of the command so far.
        text: The word so far.
    """

    __slots__ = ("before", "project", "text")

    def __init__(self, project: Project, before: tuple[str, ...], text: str) -> None:
        self.project = project
        self.before = before
        self.text = text


def look_up(name: str, asked: Asked) -> Values:
    """The values of a source; none where the project cannot tell."""
    source = SOURCES.get(name)
    if source is None:
        return []
    try:
        return list(source(asked))
    except FdlError:
        return []


def environments(asked: Asked) -> Values:
    """Names of the project's environments."""
    directory = asked.project.directory
    for name in asked.project.environments():
        file = _overlay(directory, name)
        yield name, f"Environment of {file}" if file else ""


def fields(asked: Asked) -> Values:
    """Dotted paths of all values of the project's manifest."""
    from fdl.manifest.node import dotted, origin

    root = asked.project.root
    for path, leaf in root.node.leaves():
        if path:
            yield dotted(path), origin(leaf, root.directory)


def layers(asked: Asked) -> Values:
    """What a value can be written to: ``base``, an environment, a file."""
    root = asked.project.root
    yield "base", os.path.basename(root.found.path)
    yield from environments(asked)
    overlays = (_overlay(root.directory, name) for name in asked.project.environments())
    for file in (*(os.path.relpath(one, root.directory) for one in root.layers), *overlays):
        if file:
            yield file, ""


def programs(asked: Asked) -> Values:
    """The next word of a command that has a program to ask: a path command."""
    return _steps(asked.project, asked.before, programs_only=True)


def command_line(asked: Asked) -> Values:
    """A whole command line as one word: ``train quick``."""
    *before, _ = asked.text.split(" ")
    prefix = "".join(f"{word} " for word in before)
    found = _steps(asked.project, tuple(word for word in before if word), programs_only=False)
    return [(prefix + name, text) for name, text in found]


SOURCES: dict[str, Source] = {
    "command-line": command_line,
    "environments": environments,
    "fields": fields,
    "layers": layers,
    "programs": programs,
}
"""Name of a registry parameter's completer -> where its values come from."""


def _steps(project: Project, before: tuple[str, ...], *, programs_only: bool) -> Values:
    from fdl.complete.commands import listed
    from fdl.dispatch.classify import PATH
    from fdl.dispatch.walk import enter

    level: Level = project.level()
    for name in before:
        if name not in level.commands or level.kind(name) != PATH:
            return []
        level = enter(level, name, project.child)
    found = listed(level, project)
    return [(one.name, one.text) for one in found if one.kind == PATH or not programs_only]


def _overlay(directory: str, env: str) -> str:
    from fdl.manifest.layers import overlay_file

    return os.path.basename(overlay_file(directory, env) or "")
