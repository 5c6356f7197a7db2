"""Where a project notes its warm processes: ``.fdl/warm/NAME.json``, one file for each interpreter.

Imported on the warm path, and by every program of a project without one: contextlib would take
longer than the look.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH112, PTH118, PTH120, PTH123, PTH208
from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

FOLDER = os.path.join(".fdl", "warm")


def has_any(root: str) -> bool:
    """Whether a project has a folder of warm processes: one question to the system."""
    return os.path.isdir(os.path.join(root, FOLDER))


def markers(root: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each file of a warm process, with what it says: ``interpreter``, ``socket``, ``pid``."""
    import json

    folder = os.path.join(root, FOLDER)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        if not name.endswith(".json"):
            continue
        try:
            with open(path, encoding="utf-8") as stream:
                found = json.load(stream)
        except (OSError, ValueError):
            continue
        if isinstance(found, dict) and isinstance(found.get("socket"), str):
            yield path, found


def marker(root: str, interpreter: str) -> str:
    """The path of the file for an interpreter."""
    from zlib import crc32

    return os.path.join(root, FOLDER, f"{crc32(os.fsencode(interpreter)):08x}.json")


def forget(path: str, known: Mapping[str, Any]) -> None:
    """Remove the file of a process that was killed, and the folder of its socket."""
    place = str(known["socket"])
    for remove, one in (
        (os.remove, path),
        (os.remove, place),
        (os.rmdir, os.path.dirname(place)),
    ):
        try:
            remove(one)
        except OSError:
            continue
