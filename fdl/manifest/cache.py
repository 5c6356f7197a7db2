"""The checked manifest as JSON beside the project, so that a warm start reads nothing else.

Imported on the warm path: only ``os`` and ``time`` at module top. Whatever is wrong with a cache
(stale, truncated, written by another version, not ours) makes it absent, never an error.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH103, PTH105, PTH107, PTH112, PTH116, PTH118, PTH120, PTH123
from __future__ import annotations

import os
import time

from fdl import __version__
from fdl.manifest.node import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    # Path, then what changes when the file does: mtime and ctime in ns, and size in bytes.
    Stamp = tuple[str, int, int, int]

# Counts up when the shape of the cache or the meaning of a check changes within one version.
FORMAT = 1

# The coarsest clock tick of the file systems fdl meets: a file changed again within one tick
# keeps its stamp, so what was read that soon after a change is not cached.
_TICK_NS = 10_000_000


def location(directory: str) -> str:
    """Path of the cache that belongs to the manifest in ``directory``."""
    return os.path.join(directory, ".fdl", "manifest.json")


def stamp(file: str) -> Stamp | None:
    """What identifies the present content of ``file``, or None when it cannot be looked at."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return file, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def fetch(directory: str, file: str, env: str | None) -> Node | None:
    """The cached tree of ``file`` under ``env`` when nothing it was made from has changed."""
    try:
        with open(location(directory), encoding="utf-8") as stream:
            document = _parse(stream.read())
        stamps = document["stamps"]
        if (
            document["version"] != __version__
            or document["format"] != FORMAT
            or document["env"] != env
            or stamps[0][0] != file
            or any(stamp(known[0]) != tuple(known) for known in stamps)
        ):
            return None
        return _decoded(document["node"], [known[0] for known in stamps])
    except Exception:
        # Anything may stand in a foreign file, and some of it makes the C scanner misbehave.
        return None


def store(directory: str, node: Node, stamps: Sequence[Stamp | None], env: str | None) -> None:
    """Write the cache; silently not where that is impossible or would not be safe.

    Args:
        directory: The manifest's directory.
        node: The checked tree.
        stamps: One per file that made it, base first, taken before the file was read.
        env: The environment it was made for.
    """
    newest = time.time_ns() - _TICK_NS
    if any(known is None or max(known[1:3]) > newest for known in stamps):
        return
    import json

    files = {known[0]: index for index, known in enumerate(stamps) if known is not None}
    document = {
        "version": __version__,
        "format": FORMAT,
        "env": env,
        "stamps": stamps,
        "node": _encoded(node, files),
    }
    target = location(directory)
    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        _make_folder(os.path.dirname(target))
        with open(temporary, "w", encoding="utf-8") as stream:
            json.dump(document, stream, separators=(",", ":"))
        os.replace(temporary, target)
    except OSError:
        from contextlib import suppress

        with suppress(OSError):
            os.remove(temporary)


def _make_folder(folder: str) -> None:
    """Make ``.fdl/``, invisible to git: what is in there can always be made again."""
    if os.path.isdir(folder):
        return
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, ".gitignore"), "w", encoding="utf-8") as stream:
        stream.write("*\n")


def _encoded(node: Node, files: dict[str, int]) -> list[object]:
    value: object = node.value
    if isinstance(node.value, dict):
        value = {key: _encoded(child, files) for key, child in node.value.items()}
    elif isinstance(node.value, list):
        value = [_encoded(child, files) for child in node.value]
    place = (files[node.file], node.line, node.column, node.key_line, node.key_column)
    return [value, *place]


def _decoded(record: list, files: list[str]) -> Node:  # type: ignore[type-arg]
    value, file, line, column, key_line, key_column = record
    if isinstance(value, dict):
        value = {key: _decoded(child, files) for key, child in value.items()}
    elif isinstance(value, list):
        value = [_decoded(child, files) for child in value]
    return Node(value, files[file], line, column, key_line, key_column)


class _Settings:
    """What the standard library's C scanner asks of the object that configures it."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def _parse(text: str) -> dict:  # type: ignore[type-arg]
    """JSON without the ``json`` package, whose import costs more than reading the cache."""
    try:
        from _json import make_scanner

        scan = make_scanner(_Settings)  # type: ignore[arg-type]
    except (ImportError, AttributeError, TypeError):
        import json

        return json.loads(text)  # type: ignore[no-any-return]
    document, end = scan(text, 0)
    if end != len(text):
        raise ValueError("trailing text")
    return document  # type: ignore[no-any-return]
