"""The last answer of a program, stored beside the manifest that names the program.

Imported on the warm path: only ``os`` at module top. A bad record (stale, truncated, foreign)
counts as absent and is never an error.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH116, PTH118, PTH119
from __future__ import annotations

import os
from _imp import source_hash

from fdl.base.files import names, read_text
from fdl.base.light_record import Record
from fdl.manifest.cache import keep
from fdl.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from fdl.manifest.select.level import Level
    from fdl.programs.parameters.contract import Schema

# Increase it when the format of a record changes within one version.
FORMAT = 2

FOLDER = os.path.join(".fdl", "schema-cache")
"""The folder of a directory's answers, relative to the directory."""

SOURCES = os.path.join(".fdl", "source-cache")
"""The folder of what was read from the source of programs, relative to the directory."""

_SUFFIXES = tuple(
    f"{kind}{example}"
    for kind in (".yml", ".yaml", ".json")
    for example in ("", ".example", ".dist")
)


class Answer(Record):
    """One answer: a schema, or the reason why there is none.

    Attributes:
        schema: The program's schema, or None after a failure.
        problem: Why the request failed or the answer was not understood; empty for a schema.
    """

    schema: Schema | None
    problem: str = ""


def location(level: Level, folder: str = FOLDER) -> str:
    """Path of the record of a level's entry in one of the two folders.

    The record of the entry in the directory's own manifest has the directory's name. An entry that
    a parent or an overlay sets has a separate record, so that neither replaces the other.
    """
    directory = level.manifest.directory
    name = os.path.basename(directory) or "root"
    entry = level.entry
    if entry is not None and entry.file != level.manifest.found.path:
        name += f"-{_digest(str(entry.value))}"
    return os.path.join(directory, folder, f"{name}.json")


def fetch(level: Level, folder: str = FOLDER) -> Answer | None:
    """The record of a level's entry, if nothing it depends on has changed since."""
    try:
        text = read_text(location(level, folder))
        from fdl.base.light_json import parse as parse_json

        document: Any = parse_json(text)
        directory = level.manifest.directory
        if document["key"] != _key(level) or any(
            stamp(directory, known[0]) != known for known in document["files"]
        ):
            return None
        if document["problem"]:
            return Answer(None, str(document["problem"]))
        from fdl.programs.parameters.contract import parse

        source = "source" if folder == SOURCES else "program"
        return Answer(parse(document["schema"], source=source))
    except Exception:
        # A foreign file may hold anything, and some content makes the C scanner misbehave.
        return None


def stamp(directory: str, name: str) -> list[str | int] | None:
    """The name and the state (times, size) of a file, relative to ``directory``."""
    try:
        status = os.stat(os.path.join(directory, name))
    except OSError:
        return None
    return [name, status.st_mtime_ns, status.st_size]


def stamps(level: Level, files: Sequence[str]) -> list[list[str | int]]:
    """The stamps of all existing files. Take them before you ask the program."""
    directory = level.manifest.directory
    found = (stamp(directory, os.path.relpath(file, directory)) for file in files)
    return [known for known in found if known]


def store(
    level: Level,
    answer: object,
    problem: str,
    files: list[list[str | int]],
    folder: str = FOLDER,
) -> None:
    """Write a record. If that is impossible, do nothing and print nothing.

    The answer is a checked document, or None with a problem; ``files`` come from :func:`stamps`.
    """
    document = {"key": _key(level), "files": files, "problem": problem, "schema": answer}
    # Defaults may be private, as the manifest may be.
    manifest = level.manifest
    keep(manifest.directory, location(level, folder), document, [manifest.found.path])


def _key(level: Level) -> list[object]:
    """Everything that a record depends on besides the program's own files."""
    entry, directory = level.entry, level.manifest.directory
    manifests = [
        stamp(directory, name)
        for name in names(directory)
        if name.startswith("fdl.") and name.endswith(_SUFFIXES)
    ]
    service = level.manifest.node.text("docker")
    return [FORMAT, __version__, _digest(str(entry.value)) if entry else "", service, manifests]


def _digest(text: str) -> str:
    """A digest that identifies an entry without showing its text, which may hold a secret."""
    # Part of every interpreter; a module for checksums would have to be loaded.
    return source_hash(0, text.encode()).hex()
