"""Memory of the host in bytes, from the kernel's file where there is one, else from psutil.

The import of psutil takes longer than a step of a small training, so it happens only where it is
needed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_HEAD_BYTES = 1024
"""Enough for the first lines of ``/proc/meminfo``, which are those that count."""


class HostMemoryBytes(NamedTuple):
    """What the host has, and what a new program could use without swapping."""

    total: int
    available: int


def host_memory_bytes(proc: Path = Path("/proc")) -> HostMemoryBytes:
    """Return the memory of the host.

    Args:
        proc: Folder of the kernel's counters.

    Raises:
        ImportError: There is no such folder, and psutil is not installed.
    """
    try:
        return _from_kernel(read_head(proc / "meminfo"))
    except (OSError, ValueError, KeyError, IndexError):
        import psutil

        found = psutil.virtual_memory()
        return HostMemoryBytes(int(found.total), int(found.available))


def resident_bytes() -> int:
    """Return the memory that this process holds."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def read_head(file: Path) -> bytes:
    """Read the beginning of a file, without the noticeable cost of a text file object."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return os.read(descriptor, _HEAD_BYTES)
    finally:
        os.close(descriptor)


def _from_kernel(text: bytes) -> HostMemoryBytes:
    kib: dict[bytes, int] = {}
    for line in text.splitlines():
        key, _, rest = line.partition(b":")
        kib[key] = int(rest.split()[0])
        if b"MemTotal" in kib and b"MemAvailable" in kib:
            break
    return HostMemoryBytes(kib[b"MemTotal"] * 1024, kib[b"MemAvailable"] * 1024)
