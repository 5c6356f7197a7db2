"""The folders that keep measurements and decisions between runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder, which may not exist yet; ``FLODL_CACHE_DIR`` overrides it."""
    named = os.environ.get("FLODL_CACHE_DIR")
    if named:
        return Path(named)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "flodl"


def project_folder() -> Path:
    """Return the folder of what belongs to one project: its ``.fdl``, which git ignores.

    Without a project it is :func:`cache_folder`, as with ``FLODL_CACHE_DIR``.
    """
    root = os.environ.get("FDL_PROJECT_ROOT")
    if not root or os.environ.get("FLODL_CACHE_DIR"):
        return cache_folder()
    return Path(root) / ".fdl"
