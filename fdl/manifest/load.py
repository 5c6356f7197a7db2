"""Found -> Manifest: from the cache when nothing changed, else read, checked, merged and cached.

Imported on the warm path: yaml comes in only when a file has to be read.
"""

from __future__ import annotations

from fdl.manifest import cache
from fdl.manifest.layers import overlay_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.manifest.discover import Found
    from fdl.manifest.node import Node, Removed


class Manifest:
    """A checked manifest with its overlay laid over it.

    Attributes:
        node: The root mapping; consumers may rely on keys and types.
        found: The base file.
        directory: Absolute directory of that file, to which its paths are relative.
        env: The environment it was read for; None for none. It may have no overlay here.
        layers: The files that made it, weakest first.
        removed: Keys that an overlay deleted.
        warnings: What to tell the user about it.
    """

    __slots__ = ("directory", "env", "found", "layers", "node", "removed", "warnings")

    def __init__(
        self,
        node: Node,
        found: Found,
        env: str | None,
        layers: tuple[str, ...],
        removed: list[Removed],
    ) -> None:
        self.node = node
        self.found = found
        self.directory = found.directory
        self.env = env
        self.layers = layers
        self.removed = removed
        self.warnings = found.warnings


def load(found: Found, env: str | None = None, *, write_cache: bool) -> Manifest:
    """Read, check and merge a manifest.

    Args:
        found: Which one.
        env: The environment whose overlay is laid over it, where there is one.
        write_cache: Whether the result may be kept under ``.fdl/`` for the next call.

    Raises:
        ManifestError: A file cannot be read, is broken, or holds what no manifest may hold;
            every mistake of the file is named with its place.
    """
    key = _key(found, env)
    content = cache.fetch(key)
    if content is None:
        # Stamped before it is read: a change in between leaves a stale cache, never a wrong one.
        stamps: list[cache.Stamp | None] = []
        content = _content(found.path, key.overlay, stamps)
        if write_cache:
            cache.store(key, content, stamps)
            from fdl.schema import editor_copy

            editor_copy.keep(found.path)
    return Manifest(content.node, found, env, content.layers, content.removed)


def known(found: Found, env: str | None = None) -> Manifest | None:
    """A manifest as far as it is known without reading YAML: from the cache, else None."""
    content = cache.fetch(_key(found, env))
    if content is None:
        return None
    return Manifest(content.node, found, env, content.layers, content.removed)


def _key(found: Found, env: str | None) -> cache.Key:
    overlay = overlay_file(found.directory, env) if env else None
    return cache.Key(found.directory, found.path, overlay, env if overlay else None)


def _content(base: str, overlay: str | None, stamps: list[cache.Stamp | None]) -> cache.Content:
    from fdl.manifest.check import check
    from fdl.manifest.layers import stack
    from fdl.manifest.overlay import combine
    from fdl.manifest.read import read

    def layer(file: str) -> Node:
        stamps.append(cache.stamp(file))
        node = read(file)
        check(node, whole=False)
        return node

    layers = stack(base, overlay, layer)
    node, removed = combine(layers)
    check(node, whole=True)
    return cache.Content(node, tuple(one.file for one in layers), removed)
