"""The files that make one manifest: overlays, and what each inherits from.

Each value keeps its own file and line. Imported on the warm path: only ``os`` at module top.
"""

# pathlib would add to the start of a command.
# ruff: noqa: PTH113, PTH118, PTH120, PTH122
from __future__ import annotations

import os

from fdl.manifest.discover import NAMES
from fdl.manifest.node import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_EXTENSIONS = tuple(name.removeprefix("fdl") for name in NAMES)

LOCAL = "local"
"""The overlay that applies by itself: ``fdl.local.yml``, which git ignores."""


def overlay_file(directory: str, env: str) -> str | None:
    """The overlay ``fdl.ENV.yml`` (``.yaml``, ``.json``) of a directory, or None."""
    if os.sep in env or "/" in env or "\0" in env or "," in env:
        return None
    for extension in _EXTENSIONS:
        file = os.path.join(directory, f"fdl.{env}{extension}")
        if os.path.lexists(file):
            return file
    return None


def overlay_files(directory: str, env: str | None) -> dict[str, str]:
    """Environment -> its overlay in a directory, in the order of ``env``: ``ci`` or ``ci,cloud``.

    Names without an overlay there are left out. The local overlay is the last one, unless ``env``
    says where it stands.
    """
    names = env.split(",") if env else []
    files = {one: overlay_file(directory, one) for one in (*names, LOCAL)}
    return {one: file for one, file in files.items() if file}


def environments(directory: str) -> list[str]:
    """Sorted names of the overlays to choose in a directory; empty if it cannot be read."""
    from fdl.base.files import names

    found = set()
    for name in names(directory):
        stem, extension = os.path.splitext(name)
        env = stem.removeprefix("fdl.")
        # A comma stands between two environments.
        if extension in _EXTENSIONS and env not in ("", stem, LOCAL) and "," not in env:
            found.add(env)
    return sorted(found)


def stack(base: str, overlays: Iterable[str], read: Callable[[str], Node]) -> list[Node]:
    """The layers of a manifest, weakest first: ancestors of the base, base, the same per overlay.

    A file that is reached twice counts once, at its weakest position.

    Args:
        base: The manifest.
        overlays: The overlays over it, weakest first.
        read: Reads and checks one file.

    Raises:
        ManifestError: ``inherit-from`` names a missing file or forms a circle, or a file is broken.
    """
    layers: list[Node] = []
    seen: set[str] = set()
    for top in (base, *overlays):
        for node in _chain(top, read):
            canonical = os.path.realpath(node.file)
            if canonical not in seen:
                seen.add(canonical)
                layers.append(node)
    return layers


def _chain(file: str, read: Callable[[str], Node]) -> list[Node]:
    """A file and its ancestors, the deepest one first."""
    chain: list[Node] = []
    visited: list[str] = []
    current: str | None = file
    asked_by: Node | None = None
    while current is not None:
        canonical = os.path.realpath(current)
        if canonical in visited and asked_by is not None:
            raise _circle(asked_by, [*visited, canonical])
        visited.append(canonical)
        node = read(current)
        asked_by = node.get("inherit-from")
        chain.insert(0, _stripped(node))
        current = _parent(asked_by) if asked_by else None
    return chain


def _stripped(node: Node) -> Node:
    if "inherit-from" not in node.mapping:
        return node
    return node.at({key: child for key, child in node.mapping.items() if key != "inherit-from"})


def _parent(asked_by: Node) -> str:
    from fdl.manifest.source import refusal_of

    # The check has refused everything but text.
    written = str(asked_by.value)
    directory = os.path.dirname(asked_by.file)
    file = os.path.normpath(os.path.join(directory, written))
    if not os.path.isfile(file):
        problem = f"`inherit-from: {written}`: there is no such file in {directory}"
        hint = "the path is relative to the file that names it"
        raise refusal_of(asked_by, problem, hint)
    return file


def _circle(asked_by: Node, files: list[str]) -> Exception:
    from fdl.manifest.source import refusal_of, shown

    circle = files[files.index(files[-1]) :]
    problem = f"`inherit-from` leads in a circle: {' -> '.join(map(shown, circle))}"
    return refusal_of(asked_by, problem, "remove one of the links")
