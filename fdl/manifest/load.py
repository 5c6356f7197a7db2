"""Found -> Manifest: from the cache when nothing changed, else read, checked and cached.

Imported on the warm path: yaml and pydantic come in only when a file has to be read.
"""

from __future__ import annotations

from fdl.manifest import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.manifest.discover import Found
    from fdl.manifest.node import Node


class Manifest:
    """A checked manifest.

    Attributes:
        node: The root mapping; consumers may rely on keys and types.
        found: The file it came from.
        directory: Absolute directory of that file, to which its paths are relative.
        warnings: What to tell the user about it.
    """

    __slots__ = ("directory", "found", "node", "warnings")

    def __init__(self, node: Node, found: Found) -> None:
        self.node = node
        self.found = found
        self.directory = found.directory
        self.warnings = found.warnings


def load(found: Found, env: str | None = None, *, write_cache: bool) -> Manifest:
    """Read and check a manifest.

    Args:
        found: Which one.
        env: The environment it is read for; part of the cache's key.
        write_cache: Whether the result may be kept under ``.fdl/`` for the next call.

    Raises:
        ManifestError: The file cannot be read, is broken, or holds what no manifest may hold;
            every mistake of the file is named with its place.
    """
    node = cache.fetch(found.directory, found.path, env)
    if node is None:
        # Stamped before it is read: a change in between leaves a stale cache, never a wrong one.
        stamps = [cache.stamp(found.path)]
        node = _layer(found.path)
        if write_cache:
            cache.store(found.directory, node, stamps, env)
    return Manifest(node, found)


def _layer(file: str) -> Node:
    from fdl.manifest.check import check
    from fdl.manifest.read import read

    node = read(file)
    check(node)
    return node
