"""``.fdl/state/``: what fdl knows about earlier runs of commands."""

# The paths are strings.
# ruff: noqa: PTH118, PTH120
from __future__ import annotations

import json
import os

from fdl.base.files import put_own
from fdl.manifest.cache import make_folder


def state_file(root: str, name: str) -> str:
    """A file of the project's state."""
    return os.path.join(root, ".fdl", "state", f"{name}.json")


def write(file: str, document: object) -> None:
    """Replace a file of the state as a whole. Its folder is hidden from git.

    Raises:
        OSError: It cannot be written; it has its old content.
    """
    folder = os.path.dirname(os.path.dirname(file))
    make_folder(folder)
    # Digests of short secrets can be guessed, so only the owner reads them.
    put_own(
        os.path.dirname(folder), file, json.dumps(document, separators=(",", ":")).encode(), 0o600
    )
