"""Where what was learned about a machine is kept between runs."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path

import torch

from flodl.train.processor import processor_facts


def cache_folder() -> Path:
    """Return the folder, which need not exist yet; ``FLODL_CACHE_DIR`` names another one."""
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


# A hypervisor may call every processor of a maker the same; family and model still differ.
_PROCESSOR = ("model name", "cpu family", "model", "flags", "Features", "CPU part")


def machine_key() -> str:
    """Return a short name for this processor, torch and number of threads together."""
    facts = processor_facts()
    parts = (
        *(facts.get(name, "") for name in _PROCESSOR),
        platform.processor(),
        platform.machine(),
        torch.__version__,
        str(torch.get_num_threads()),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
