"""The JSON Schema of ``fdl.yml`` beside a manifest that names it, for editors without a network.

Every cold start calls it: only ``os`` at module top; the schema is imported when it is written.
"""

# pathlib would add a tenth to the start of every first command.
# ruff: noqa: PTH105, PTH107, PTH118, PTH120, PTH123
from __future__ import annotations

import os

PLACE = ".fdl/manifest.schema.json"
"""The path that a manifest's first lines can give to the editor. fdl keeps the file up to date."""

_HEADER = f"# yaml-language-server: $schema={PLACE}"


def keep(manifest: str) -> None:
    """Write or update the copy beside a manifest, if the manifest's first lines name it.

    A failure is ignored: the manifest works without the copy.

    Args:
        manifest: Absolute path of the manifest.
    """
    try:
        with open(manifest, encoding="utf-8") as stream:
            if _HEADER not in (line.strip() for line in stream.readlines(4096)):
                return
    except (OSError, ValueError):
        return
    from fdl.schema.manifest import as_json

    directory = os.path.dirname(manifest)
    target = os.path.join(directory, *PLACE.split("/"))
    if _content(target) != as_json():
        _replace(target, as_json())


def _content(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, ValueError):
        return ""


def _replace(target: str, text: str) -> None:
    from fdl.manifest.cache import make_folder

    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        make_folder(os.path.dirname(target))
        with open(temporary, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(temporary, target)
    except OSError:
        from contextlib import suppress

        with suppress(OSError):
            os.remove(temporary)
