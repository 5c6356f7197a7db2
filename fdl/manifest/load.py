"""Found -> Manifest: from the cache if nothing changed, else read, checked, merged and cached.

Imported on the warm path: yaml is loaded only when a file has to be read.
"""

from __future__ import annotations

from fdl.base.masking import KNOWN
from fdl.base.secrets import SHORTEST_WHOLE, is_distinct
from fdl.manifest import cache
from fdl.manifest.layers import overlay_files
from fdl.manifest.slips import slips

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fdl.manifest.discover import Found
    from fdl.manifest.node import Node, Removed


class Manifest:
    """A checked manifest merged with its overlay.

    Attributes:
        node: The root mapping. Its keys and types are checked.
        found: The base file.
        directory: Absolute directory of that file. Paths in it are relative to this directory.
        env: The environment it was read for (``ci``, or several: ``ci,cloud``), or None. This
            manifest may have no overlay for it.
        layers: The files that made it, weakest first.
        removed: Keys that an overlay deleted.
        warnings: Messages about it for the user.
        has_secrets: Whether it may hold a secret itself, and not only a ``${VAR}`` for one.
    """

    def __init__(
        self,
        node: Node,
        found: Found,
        env: str | None,
        layers: tuple[str, ...],
        removed: list[Removed],
        *,
        has_secrets: bool = True,
    ) -> None:
        self.node = node
        self.found = found
        self.directory = found.directory
        self.env = env
        self.layers = layers
        self.removed = removed
        self.has_secrets = has_secrets
        KNOWN.later(self.secrets)
        overlays = overlay_files(found.directory, env)
        self.warnings = (*found.warnings, *slips(node, overlays.values()), *_of_example(found))

    def secrets(self) -> list[str]:
        """Its secret texts, and those that they have replaced."""
        if not self.has_secrets:
            return []
        from fdl.manifest.secrecy import texts

        # `sort_key: name` is secret by its name, and `name` elsewhere must stay readable.
        return [text for text, marked in texts(self) if marked or is_distinct(text)]


def _of_example(found: Found) -> Iterator[str]:
    """A warning if the example beside a manifest was changed after it, and differs."""
    for example in (f"{found.real_path}.example", f"{found.real_path}.dist"):
        made, changed = cache.stamp(found.path), cache.stamp(example)
        if made and changed and changed[1] > made[1]:
            from fdl.manifest.example import newer_keys

            yield from filter(None, [newer_keys(example, found.path)])


def load(found: Found, env: str | None = None, *, write_cache: bool) -> Manifest:
    """Read, check and merge a manifest.

    Args:
        found: The manifest file.
        env: The environments, joined by commas. Their overlays are merged if there are any.
        write_cache: Whether to keep the result under ``.fdl/`` for the next call.

    Raises:
        ManifestError: A file cannot be read, is broken, or holds what a manifest must not hold.
            The message names every mistake of the file with its place.
    """
    if cached := known(found, env):
        return cached
    key = _key(found, env)
    # Stamp before reading: a change in between leaves a stale cache, never a wrong one.
    stamps: list[cache.Stamp | None] = []
    content = _content(found.path, key.overlays.values(), stamps)
    manifest = Manifest(content.node, found, env, content.layers, content.removed)
    if write_cache:
        from fdl.manifest import editor_copy
        from fdl.manifest.secrecy import texts

        # The cache is another file than the one that the user protects.
        if all("${" in text or len(text) < SHORTEST_WHOLE for text, _ in texts(manifest)):
            cache.store(key, content, stamps)
        else:
            cache.remove(key)
        editor_copy.keep(found.path)
    return manifest


def settle(found: Found, *, executes: bool) -> Found:
    """Copy an example to the real manifest, if the command will execute something.

    Help, completion and every command that only prints never write.
    """
    if not found.is_example or not executes:
        return found
    from fdl.manifest.example import settled

    return settled(found)


def known(found: Found, env: str | None = None) -> Manifest | None:
    """The manifest from the cache, else None. Reads no YAML."""
    content = cache.fetch(_key(found, env))
    if content is None:
        return None
    layers, removed = content.layers, content.removed
    return Manifest(content.node, found, env, layers, removed, has_secrets=False)


def _key(found: Found, env: str | None) -> cache.Key:
    return cache.Key(found.directory, found.path, overlay_files(found.directory, env))


def _content(base: str, overlays: Iterable[str], stamps: list[cache.Stamp | None]) -> cache.Content:
    from fdl.manifest.check import check
    from fdl.manifest.layers import stack
    from fdl.manifest.overlay import combine
    from fdl.manifest.read import read

    def layer(file: str) -> Node:
        stamps.append(cache.stamp(file))
        node = read(file)
        check(node, whole=False)
        return node

    layers = stack(base, overlays, layer, lambda file: stamps.append(cache.stamp_of_absent(file)))
    node, removed = combine(layers)
    check(node, whole=True)
    return cache.Content(node, tuple(one.file for one in layers), removed)
