"""What a program of flodl says about its own commands, in the manifest beside it."""

from __future__ import annotations

from fdl.manifest.discover import find_in
from fdl.manifest.load import load


def descriptions(folder: str) -> dict[str, str]:
    """The commands of the manifest in a folder, each with its one line; empty without one.

    Raises:
        ManifestError: It is broken.
    """
    found = find_in(folder)
    listed = load(found, write_cache=False).node.get("commands") if found else None
    specs = listed.mapping if listed else {}
    return {name: spec.text("description") or "" for name, spec in specs.items()}
