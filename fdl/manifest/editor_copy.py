"""The JSON Schema of ``fdl.yml`` beside a manifest that names it, for editors without a network.

Every cold start calls it: only ``os`` at module top; the schema is imported when it is written.
"""

# pathlib would add a tenth to the start of every first command.
# ruff: noqa: PTH118, PTH120, PTH123
from __future__ import annotations

import os

PLACE = ".fdl/manifest.schema.json"
"""The path that a manifest's first lines can give to the editor. fdl keeps the file up to date."""

_HEADER = f"# yaml-language-server: $schema={PLACE}"


def keep(manifest: str) -> None:
    """Write or update the copy beside a manifest, if the manifest's first lines name it.

    A failure is ignored: the manifest works without the copy.
    """
    if _HEADER not in (line.strip() for line in _lines(manifest, 4096)):
        return
    from fdl.manifest.json_schema import as_json

    directory = os.path.dirname(manifest)
    target = os.path.join(directory, *PLACE.split("/"))
    if "".join(_lines(target)) != as_json():
        from contextlib import suppress

        from fdl.base.files import put_own
        from fdl.manifest.cache import make_folder

        with suppress(OSError):
            make_folder(os.path.dirname(target))
            put_own(directory, target, as_json().encode())


def _lines(file: str, size: int = -1) -> list[str]:
    """The first lines of a file, or all; none if it cannot be read."""
    try:
        with open(file, encoding="utf-8") as stream:
            return stream.readlines(size)
    except (OSError, ValueError):
        return []
