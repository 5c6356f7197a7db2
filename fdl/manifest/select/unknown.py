"""What words mean that name no command, and where a setting is that the manifest lacks."""

from __future__ import annotations

import os

from fdl.base.errors import FdlError
from fdl.base.global_flags import GLOBAL_FLAGS, misplaced
from fdl.base.suggest import did_you_mean
from fdl.manifest.discover import find
from fdl.manifest.inspect.field import Report
from fdl.manifest.load import load
from fdl.manifest.select.walk import below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fdl.manifest.select.command import Selection
    from fdl.manifest.select.level import Level
    from fdl.manifest.select.project import Project


def hint_about(unknown: Selection, project: Project, others: Iterable[str] = ()) -> str:
    """The hint for a word that names no command; empty if nothing is like it.

    Args:
        unknown: What the words select.
        project: The project.
        others: Names beside the commands of the level that could stand in place of the word.
    """
    level, word = unknown.level, unknown.name
    if word.startswith("-"):
        return misplaced(word, level.manifest.env) or did_you_mean(word, GLOBAL_FLAGS)
    close = did_you_mean(word, [*others, *level.commands], typed=level.typed("{}"))
    if level.names:
        return close
    return _of_the_project_above(level, word) or close or _elsewhere(unknown, project)


def _of_the_project_above(level: Level, word: str) -> str:
    try:
        found = find(os.path.dirname(level.root))  # noqa: PTH120 - as the manifest's own paths
        commands = load(found, write_cache=False).node.get("commands") if found else None
    except FdlError:
        return ""
    if found is None or commands is None or word not in commands.mapping:
        return ""
    return f"`{word}` is a command of the project in {found.directory}: type it there"


def _elsewhere(unknown: Selection, project: Project) -> str:
    """The hint for a preset before its command, and for an environment without a file."""
    level, word = unknown.level, unknown.name
    for place in below(level, project.child):
        if place.level and word in place.level.commands:
            return f"did you mean `{place.level.typed(word)}`?"
    if unknown.words and unknown.words[0] in level.commands and level.manifest.env is None:
        return f"to use an environment `{word}`, create fdl.{word}.yml"
    return ""


def set_below(project: Project, asked: str) -> tuple[str, str]:
    """A setting that the manifest of a path command has, and the words of that command.

    Both are empty if there is none. ``asked`` is its path or the last part: ``training.lr``,
    ``lr``.
    """
    for place in below(project.level(), project.child):
        for field in Report(place.level.manifest).fields if place.level else ():
            if asked in (field.name, field.name.rpartition(".")[2]) and field.path[0] != "commands":
                return field.name, " ".join(place.names)
    return "", ""
