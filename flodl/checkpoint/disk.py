"""Write a large file: the space is reserved first, and the disk starts while the rest follows."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable
from typing import final

_STRETCH = 1 << 24  # bytes per request to start writing to disk
_SYNC_FILE_RANGE_WRITE = 2


@final
class Disk:
    """A large file of known size that is written front to back.

    Two measures, each skipped where the system lacks it:

    - It reserves the space first. A full disk shows at once, and the file system need not find
      blocks one by one.
    - It asks the disk to start while the rest is being written. A durable file then waits less.

    Args:
        descriptor: A new file, open for writing.
        size: Its final size in bytes.

    Raises:
        OSError: The disk is full, or the file may not become so large.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._written = self._begun = 0
        reserve = getattr(os, "posix_fallocate", None)
        if reserve is not None and size >= _STRETCH:
            try:
                reserve(descriptor, 0, size)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise

    def wrote(self, size: int) -> None:
        """Report further bytes that were handed to the system, front to back."""
        self._written += size
        whole = self._written - self._written % _STRETCH
        if whole > self._begun:
            _begin_writing(self._descriptor, self._begun, whole - self._begun)
            self._begun = whole


def _begin_writing(descriptor: int, offset: int, size: int) -> None:
    """Ask the disk to start on bytes that were already written; a hint that only Linux knows."""
    begin = _sync_file_range()
    if begin is not None:
        begin(descriptor, offset, size, _SYNC_FILE_RANGE_WRITE)


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError, TypeError):  # TypeError: Windows requires a name
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    call: Callable[[int, int, int, int], int] = function
    return call
