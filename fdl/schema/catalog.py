"""All cached schemas of a project, and all its programs that can have one."""

# The paths of a Level are strings.
# ruff: noqa: PTH106, PTH107, PTH112, PTH113, PTH118, PTH119, PTH120, PTH208
from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from fdl.dispatch.classify import PATH
from fdl.dispatch.walk import Level, enter
from fdl.errors import FdlError
from fdl.manifest import Manifest, find_in
from fdl.schema.cache import FOLDER, fetch, location

Load = Callable[[str], Manifest | None]

# Folders of tools and data. They hold no command of the project.
_SKIPPED = frozenset(
    (".git", "target", "node_modules", "libtorch", "runs", ".cargo", "site", "docs", ".claude",
     ".venv", "venv", "__pycache__", "build", "dist")
)  # fmt: skip


class Program:
    """The entry of one level, with the name under which the user finds it.

    Attributes:
        name: The command as typed, without ``fdl``; the folder's name for the project itself.
        level: The level; None when its manifest cannot be read.
        problem: Why it cannot be read.
    """

    __slots__ = ("level", "name", "problem")

    def __init__(self, name: str, level: Level | None, problem: FdlError | None = None) -> None:
        self.name = name
        self.level = level
        self.problem = problem


class Cached:
    """One file of the cache.

    Attributes:
        name: The command as typed, or the file's name if no command leads to it.
        path: Absolute path.
        status: ``fresh``, ``stale``, ``failed`` (fresh, but the program could not answer) or
            ``orphan`` (no manifest beside it).
    """

    __slots__ = ("name", "path", "status")

    def __init__(self, name: str, path: str, status: str) -> None:
        self.name = name
        self.path = path
        self.status = status


def programs(project: Level, load: Load) -> Iterator[Program]:
    """Every entry of the project, each one once, parents before children."""
    seen: set[tuple[str, str]] = set()
    waiting: list[Level] = [project]
    while waiting:
        level = waiting.pop()
        place = _identity(level)
        if place in seen:
            continue
        seen.add(place)
        if level.entry:
            yield Program(" ".join(level.names) or _basename(level.manifest.directory), level)
        below: list[Level] = []
        for name in level.commands:
            try:
                if level.kind(name) == PATH:
                    below.append(enter(level, name, load))
            except FdlError as problem:
                yield Program(" ".join((*level.names, name)), None, problem)
        waiting += reversed(below)


def cached(project: Level, load: Load) -> list[Cached]:
    """Every cached schema below the project, and those of its other commands, sorted by path."""
    levels = {
        location(program.level): program for program in programs(project, load) if program.level
    }
    files = set(_files(project.manifest.directory))
    files.update(file for file in levels if os.path.isfile(file))
    found = []
    for file in sorted(files):
        known = levels.get(file)
        level = known.level if known else _lone_level(file, load)
        name = known.name if known else _basename(file).removesuffix(".json")
        found.append(Cached(name, file, _status(file, level)))
    return found


def matches(name: str, path: str, wanted: str) -> bool:
    """Whether ``wanted``, a command or the name of a folder, means this program or cache file."""
    words = wanted.replace("/", " ").split()
    folder = _basename(_command_folder(path))
    return words in (name.split(), [folder]) or wanted == _basename(path).removesuffix(".json")


def delete(file: str) -> None:
    """Delete one cached schema, and the folders that existed only for it.

    Raises:
        OSError: It cannot be deleted.
    """
    os.remove(file)
    folder = os.path.dirname(file)
    if os.listdir(folder):
        return
    os.rmdir(folder)
    above = os.path.dirname(folder)
    if os.listdir(above) == [".gitignore"]:
        os.remove(os.path.join(above, ".gitignore"))
    if not os.listdir(above):
        os.rmdir(above)


def _files(root: str) -> Iterator[str]:
    for folder, names, _ in os.walk(root):
        names[:] = sorted(name for name in names if name not in _SKIPPED and name != ".fdl")
        cache = os.path.join(folder, FOLDER)
        if os.path.isdir(cache):
            for name in os.listdir(cache):
                if name.endswith(".json"):
                    yield os.path.join(cache, name)


def _lone_level(file: str, load: Load) -> Level | None:
    """The level of a folder without a command in the project, loaded like a project."""
    directory = _command_folder(file)
    try:
        manifest = load(directory)
    except FdlError:
        return None
    return None if manifest is None else Level(manifest, (), directory, None)


def _status(file: str, level: Level | None) -> str:
    if find_in(_command_folder(file)) is None:
        return "orphan"
    record = fetch(level) if level and location(level) == file else None
    if record is None:
        return "stale"
    return "fresh" if record.schema else "failed"


def _command_folder(file: str) -> str:
    """The folder of the manifest that a cache file belongs to."""
    return os.path.dirname(os.path.dirname(os.path.dirname(file)))


def _identity(level: Level) -> tuple[str, str]:
    entry = level.entry
    return os.path.realpath(
        level.manifest.directory
    ), f"{entry.file}:{entry.value}" if entry else ""


def _basename(path: str) -> str:
    return os.path.basename(path) or path
