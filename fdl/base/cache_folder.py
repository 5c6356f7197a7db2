"""The folder of the user's caches."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The folder, which may not exist yet; ``FLODL_CACHE_DIR`` names another one.

    It is where platformdirs would put it, whose import takes as long as a whole command.
    """
    if named := os.environ.get("FLODL_CACHE_DIR"):
        return Path(named)
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "flodl" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "flodl"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flodl"
