"""Found -> Manifest: from the cache if nothing changed, else read, checked, merged and cached.

Imported on the warm path: yaml is loaded only when a file has to be read.
"""

# pathlib would add to the start of a command.
# ruff: noqa: PTH118, PTH120
from __future__ import annotations

import os

from fdl.base.light_record import Record
from fdl.base.masking import KNOWN
from fdl.base.secrets import SHORTEST_WHOLE, is_distinct
from fdl.manifest import cache
from fdl.manifest.cache import make_folder
from fdl.manifest.layers import overlay_files, stack
from fdl.manifest.slips import slips

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from fdl.manifest.discover import Found
    from fdl.manifest.node import Node


class Manifest(Record):
    """A checked manifest merged with its overlay.

    Attributes:
        found: The base file.
        env: The environment it was read for (``ci``, or several: ``ci,cloud``), or None. This
            manifest may have no overlay for it.
        content: The next three.
        node: The root mapping. Its keys and types are checked.
        layers: The files that made it, weakest first.
        removed: Keys that an overlay deleted.
        overlays: The overlays among the files.
        has_secrets: Whether it may hold a secret itself, and not only a ``${VAR}`` for one.
        directory: Absolute directory of the base file. Paths in it are relative to this directory.
        warnings: Messages about it for the user.
    """

    found: Found
    env: str | None
    content: cache.Content
    overlays: Collection[str] = ()
    has_secrets: bool = True

    def settle(self) -> None:
        """Look at the content, and let nothing print its secrets."""
        self.node, self.layers, self.removed = self.content
        self.directory = self.found.directory
        if self.has_secrets:
            KNOWN.add(self.secrets())
        warnings = (*slips(self.node, self.overlays), *_of_example(self.found))
        self.warnings = (*self.found.warnings, *warnings)

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
    overlays = overlay_files(found.directory, env)
    if (content := cache.fetch(found, overlays)) is not None:
        return Manifest(found, env, content, overlays.values(), has_secrets=False)
    # Stamp before reading: a change in between leaves a stale cache, never a wrong one.
    stamps: list[cache.Stamp | None] = []
    content = _content(found.path, overlays.values(), stamps)
    manifest = Manifest(found, env, content, overlays.values())
    if write_cache:
        from fdl.manifest.secrecy import texts

        # The cache is another file than the one that the user protects.
        if all("${" in text or len(text) < SHORTEST_WHOLE for text, _ in texts(manifest)):
            cache.store(found, overlays, content, stamps)
        else:
            cache.remove(found, overlays)
        _keep_schema(found.path)
    return manifest


def known(found: Found, env: str | None = None) -> Manifest | None:
    """The manifest from the cache, else None. Reads no YAML."""
    overlays = overlay_files(found.directory, env)
    content = cache.fetch(found, overlays)
    if content is None:
        return None
    return Manifest(found, env, content, overlays.values(), has_secrets=False)


def _content(base: str, overlays: Iterable[str], stamps: list[cache.Stamp | None]) -> cache.Content:
    from fdl.manifest.check import check
    from fdl.manifest.overlay import merge
    from fdl.manifest.read import read

    def layer(file: str) -> Node:
        stamps.append(cache.stamp(file))
        node = read(file)
        check(node, whole=False)
        return node

    layers = stack(base, overlays, layer)
    node, removed = merge(layers)
    check(node, whole=True)
    return node, tuple(one.file for one in layers), removed


PLACE = ".fdl/manifest.schema.json"
"""The path that a manifest's first lines can give to the editor. fdl keeps the file up to date."""

_HEADER = f"# yaml-language-server: $schema={PLACE}"


def _keep_schema(manifest: str) -> None:
    """Write or update the copy beside a manifest, if the manifest's first lines name it.

    A failure is ignored: the manifest works without the copy.
    """
    from fdl.base.files import text_of
    from fdl.base.own_files import put_own

    if _HEADER not in map(str.strip, text_of(manifest)[:4096].splitlines()):
        return
    from fdl.manifest.json_schema import as_json

    directory = os.path.dirname(manifest)
    target = os.path.join(directory, *PLACE.split("/"))
    if text_of(target) != as_json():
        from contextlib import suppress

        with suppress(OSError):
            make_folder(os.path.dirname(target))
            put_own(directory, target, as_json().encode())
