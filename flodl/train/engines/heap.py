"""Keeping the heap: memory that a step frees stays in the process for the next step.

The C library returns large blocks to the system at once. A step of a convolutional network frees
and allocates the same gigabytes again and again. Each time, the system clears and maps every page:
hundreds of thousands of page faults per step. See mallopt(3).
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from types import ModuleType
from typing import Any

resource: ModuleType | Any
try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4
_KEPT = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 64 * 2**20))
# Setting a threshold turns off glibc's own adjustment of it. So these are the values that it grows
# to, not its initial values.
_USUAL = (
    (_M_MMAP_MAX, 65536),
    (_M_MMAP_THRESHOLD, 32 * 2**20),
    (_M_TRIM_THRESHOLD, 64 * 2**20),
    (_M_TOP_PAD, 128 * 2**10),
)


def can_keep() -> bool:
    """Whether the C library of this process has these settings."""
    return _library() is not None


def kept_by_environment() -> bool:
    """Whether the process was started with settings of the heap, as ``fdl`` does."""
    return "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")


def keep() -> None:
    """Keep freed memory in the process from now on."""
    _tell(_KEPT)


def release() -> None:
    """Restore the usual behaviour, and return free memory to the system."""
    _tell(_USUAL)
    library = _library()
    if library is not None:
        library.malloc_trim(0)


def page_faults() -> int:
    """Return the page faults of this process so far that did not read a disk; 0 on Windows."""
    if resource is None:
        return 0
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)


def _tell(settings: tuple[tuple[int, int], ...]) -> None:
    library = _library()
    if library is not None:
        for parameter, value in settings:
            library.mallopt(parameter, value)


@functools.cache
def _library() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    glibc = hasattr(library, "gnu_get_libc_version") and hasattr(library, "malloc_trim")
    return library if glibc else None
