"""All cached schemas of a project, and all its programs that can have one."""

# The paths of a Level are strings.
# ruff: noqa: PTH106, PTH107, PTH113, PTH118, PTH119, PTH120, PTH208
from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from time import time
from typing import NamedTuple

from fdl.base.errors import FdlError
from fdl.base.files import names as names_in
from fdl.base.own_files import inside, own
from fdl.manifest.discover import find_in
from fdl.manifest.load import Manifest
from fdl.manifest.select.level import Level
from fdl.manifest.select.walk import Place, below
from fdl.programs.schema.cache import FOLDER, SOURCES, fetch, location

Load = Callable[[str], Manifest | None]

# Folders of tools and data. They hold no command of the project.
_SKIPPED = frozenset(
    (".git", "target", "node_modules", "libtorch", "runs", ".cargo", "site", "docs", ".claude",
     ".venv", "venv", "__pycache__", "build", "dist")
)  # fmt: skip


class Known(NamedTuple):
    """What is known about the arguments of one program, from one origin.

    Attributes:
        name: The command as typed, or the file's name if no command leads to it.
        path: Absolute path of the file that holds it.
        status: ``fresh``, ``stale``, ``failed`` (fresh, but the program could not answer) or
            ``orphan`` (no manifest beside it).
        source: ``program`` (it answered), ``source`` (read from its source) or ``manifest``
            (written under ``schema:``).
        age_s: Seconds since the file was written.
    """

    name: str
    path: str
    status: str
    source: str
    age_s: int


def _known(name: str, path: str, status: str, source: str = "program") -> Known:
    return Known(name, path, status, source, max(0, int(time() - os.lstat(path).st_mtime)))


def programs(project: Level, load: Load) -> Iterator[Place]:
    """Every entry of the project and every command whose entry cannot be read, each one once."""
    top = Place(())
    top.level = project
    for one in (top, *below(project, load)):
        if one.problem or (one.level and one.level.entry):
            yield one


def name_of(program: Place) -> str:
    """The command as typed, without ``fdl``; the folder's name for the project itself."""
    level = program.level
    return " ".join(program.names) or (_basename(level.manifest.directory) if level else "")


def cached(project: Level, load: Load) -> list[Known]:
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
        name = name_of(known) if known else _basename(file).removesuffix(".json")
        found.append(_known(name, file, _status(file, level)))
    return found


def origins(project: Level, load: Load) -> list[Known]:
    """Every schema of a project with its origin, sorted by path.

    What the manifest or the source says is listed only while no fresh answer of the program is
    used instead.
    """
    found = cached(project, load)
    answered = {one.path for one in found if one.status == "fresh"}
    for program in programs(project, load):
        level = program.level
        if level is None or location(level) in answered:
            continue
        source = location(level, SOURCES)
        record = fetch(level, SOURCES)
        if (node := level.manifest.node.get("schema")) is not None:
            found.append(_known(name_of(program), node.file, "fresh", "manifest"))
        elif record is None and os.path.isfile(source):
            found.append(_known(name_of(program), source, "stale", "source"))
        elif record is not None and record.schema:
            found.append(_known(name_of(program), source, "fresh", "source"))
    return sorted(found, key=lambda one: one.path)


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
    os.remove(own(_command_folder(file), file))
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
        try:
            cache = inside(folder, FOLDER)
        except OSError:
            # A link leads to files that are not of this cache.
            continue
        for name in names_in(cache):
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


def _basename(path: str) -> str:
    return os.path.basename(path) or path
