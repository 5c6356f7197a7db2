"""The checked manifest as JSON beside the project, so that a warm start reads nothing else.

Imported on the warm path: only ``os`` and ``time`` at module top. A bad cache (stale, truncated,
written by another version or another program) counts as absent and is never an error.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH103, PTH107, PTH112, PTH116, PTH118, PTH123
from __future__ import annotations

import os
import sys
import time

from fdl.base import light_json
from fdl.manifest.node import Node, Null, Removed
from fdl.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from fdl.manifest.discover import Found

    # The path, and what changes with the file: mtime and ctime in ns, size in bytes.
    Stamp = tuple[str, int, int, int]
    # The merged tree, the files that made it, the keys that were deleted.
    Content = tuple[Node, tuple[str, ...], list[Removed]]

# Increase it when the format of the cache or the meaning of a check changes within one version.
FORMAT = 5

# The coarsest clock tick of the supported file systems. A file that changes again within one tick
# keeps its stamp. So content that was read that soon after a change is not cached.
_TICK_NS = 10_000_000


def _file(found: Found, overlays: Mapping[str, str]) -> str:
    """Path of the cache file, one per combination of environments."""
    name = f"manifest.{','.join(overlays)}.json" if overlays else "manifest.json"
    return os.path.join(found.directory, ".fdl", name)


def _key(found: Found, overlays: Mapping[str, str]) -> list[object]:
    """The values that must be equal for a cache to be valid, as JSON data."""
    # Another interpreter may read YAML and numbers differently.
    return [FORMAT, __version__, sys.hexversion, found.path, overlays]


def stamp(file: str) -> Stamp | None:
    """The path and the state of ``file`` (times, size), or None if it cannot be inspected."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return file, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def fetch(found: Found, overlays: Mapping[str, str]) -> Content | None:
    """What is cached of a manifest, if none of its source files has changed.

    ``overlays`` maps environments to their overlays, weakest first.
    """
    try:
        with open(_file(found, overlays), encoding="utf-8") as stream:
            document: Any = light_json.parse(stream.read())
        stamps = document["stamps"]
        stamped = {known[0] for known in stamps}
        if (
            document["key"] != _key(found, overlays)
            or not stamped.issuperset(document["layers"])
            or not stamped.issuperset((found.path, *overlays.values()))
            or any(stamp(known[0]) != tuple(known) for known in stamps)
        ):
            return None
        files = document["files"]
        return (
            _decoded(document["node"], files),
            tuple(document["layers"]),
            [Removed(tuple(path), _decoded(by, files)) for path, by in document["removed"]],
        )
    except Exception:
        # A foreign file may hold anything, and some content makes the C scanner misbehave.
        return None


def store(
    found: Found, overlays: Mapping[str, str], content: Content, stamps: Sequence[Stamp | None]
) -> None:
    """Write the cache. If that is impossible or unsafe, do nothing and print nothing.

    The stamps, one per source file, were taken before the file was read.
    """
    newest = time.time_ns() - _TICK_NS
    if any(known is None or max(known[1:3]) > newest for known in stamps):
        return
    node, layers, removed = content
    files: dict[str, int] = {}
    document = {
        "key": _key(found, overlays),
        "stamps": stamps,
        "layers": layers,
        "node": _encoded(node, files),
        "removed": [(one.path, _encoded(one.by, files)) for one in removed],
        "files": list(files),
    }
    keep(found.directory, _file(found, overlays), document, layers)


def keep(directory: str, file: str, document: object, sources: Iterable[str]) -> None:
    """Write a document below ``.fdl/`` of a directory. If that is impossible, do nothing.

    Only users who can read the sources may read it.
    """
    import json
    from contextlib import suppress

    from fdl.base.own_files import put_own

    with suppress(OSError):
        make_folder(os.path.join(directory, ".fdl"))
        mode = 0o666
        for source in sources:
            mode &= os.stat(source).st_mode
        text = json.dumps(document, separators=(",", ":"))
        put_own(directory, file, text.encode(), mode)


def remove(found: Found, overlays: Mapping[str, str]) -> None:
    """Remove the cache of a manifest that must not be cached, if an earlier state was."""
    from contextlib import suppress

    with suppress(OSError):
        os.remove(_file(found, overlays))


def make_folder(folder: str) -> None:
    """Make ``.fdl/`` and hide it from git: its content can always be made again."""
    if os.path.isdir(folder):
        return
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, ".gitignore"), "w", encoding="utf-8") as stream:
        stream.write("*\n")


# A mapping of a manifest has records as values.
_NULL = {"!null": 0}


def _encoded(node: Node, files: dict[str, int]) -> list[object]:
    value: object = node.value
    if isinstance(node.value, dict):
        value = {key: _encoded(child, files) for key, child in node.value.items()}
    elif isinstance(node.value, Null):
        value = _NULL
    elif isinstance(node.value, list):
        value = [_encoded(child, files) for child in node.value]
    file = files.setdefault(node.file, len(files))
    record = [value, file, node.line, node.column, node.key_line, node.key_column]
    if node.losers or node.merge or node.secret is not False or node.empty:
        losers = [_encoded(loser, files) for loser in node.losers]
        record += [losers, node.merge, node.secret, node.empty]
    return record


def _decoded(record: list, files: list[str]) -> Node:  # type: ignore[type-arg]
    value = record[0]
    if value == _NULL:
        value = Null("null")
    elif isinstance(value, dict):
        value = {key: _decoded(child, files) for key, child in value.items()}
    elif isinstance(value, list):
        value = [_decoded(child, files) for child in value]
    node = Node(value, files[record[1]], *record[2:6])
    if len(record) > 6:
        losers, node.merge, node.secret, node.empty = record[6:]
        node.losers = tuple([_decoded(loser, files) for loser in losers])
    return node
