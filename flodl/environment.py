"""Properties of the machine and the software that a result depends on."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import torch

from fdl.base.run_record import git_commit, lock_file
from flodl.host_memory import host_memory_bytes
from flodl.openmp import openmp_report
from flodl.processor import processor_name

_TUNABLE = "glibc.malloc."
_REPLACEMENTS = ("jemalloc", "tcmalloc", "mimalloc")
_ALLOCATOR_VARIABLES = (
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)


def environment_report() -> dict[str, Any]:
    """Describe the machine and the software in JSON values; memory in bytes."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": processor_name(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "openmp": openmp_report(os.environ),
        "memory": host_memory_bytes().total,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cuda_devices": _cuda_devices(),
        "flodl": _version(),
        "git_commit": git_commit("."),
        "lock": lock_file("."),
        "allocator": allocator_report(os.environ),
    }


def allocator_report(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return which allocator serves the main memory of this process, and its settings.

    Args:
        environ: The environment variables of the process.

    Returns:
        ``library`` (``glibc 2.36``, ``jemalloc``, …; None if it is unknown) and ``settings``:
            tunables of glibc's ``malloc`` by name, and the variables that other allocators read.
    """
    preloaded = environ.get("LD_PRELOAD", "").lower()
    library = next((name for name in _REPLACEMENTS if name in preloaded), None) or _libc()
    tunables = [entry.partition("=") for entry in environ.get("GLIBC_TUNABLES", "").split(":")]
    settings = {
        name.removeprefix(_TUNABLE): value
        for name, _, value in tunables
        if name.startswith(_TUNABLE)
    }
    settings |= {name: environ[name] for name in _ALLOCATOR_VARIABLES if environ.get(name)}
    return {"library": library, "settings": settings}


def _libc() -> str | None:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError, OSError):
        return None  # another C library, or not a POSIX system


def _cuda_devices() -> list[dict[str, Any]]:
    devices = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(
            {
                "name": properties.name,
                "memory": properties.total_memory,
                "capability": f"{properties.major}.{properties.minor}",
            }
        )
    return devices


def _version() -> str | None:
    try:
        return metadata.version("flodl")
    except metadata.PackageNotFoundError:
        return None
