"""The folders that keep measurements and decisions between runs."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path

from flodl.processor import processor_facts


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


# A hypervisor may give all processors of a vendor one name; family and model still differ.
_PROCESSOR = ("model name", "cpu family", "model", "flags", "Features", "CPU part")


def machine_key(*more: str) -> str:
    """Return a short name for the combination of the processor and ``more``."""
    facts = processor_facts()
    parts = (
        *(facts.get(name, "") for name in _PROCESSOR),
        platform.processor(),
        platform.machine(),
        *more,
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
