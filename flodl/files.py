"""Replace or extend files as a whole, so that no reader sees a half-written one."""

from __future__ import annotations

import ctypes
import errno
import functools
import hashlib
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import IO, Any, final

from fdl.base.masking import KNOWN

fcntl: ModuleType | Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_STRETCH = 1 << 24  # bytes per request to start writing to disk
_SYNC_FILE_RANGE_WRITE = 2
_TEMPORARY = re.compile(r"\..+\.(?P<host>[0-9a-f]{8})-[0-9a-f]{12}\.tmp")
_DAY_SECONDS = 86400.0
_swept: set[Path] = set()
"""Folders that this process has cleaned; folders of durable files are cleaned at every write."""


@contextmanager
def replacing(path: str | os.PathLike[str], *, durable: bool = False) -> Iterator[IO[bytes]]:
    """Write ``path`` atomically: readers see the old file or the complete new one.

    The bytes go to a temporary file in the same folder. It replaces ``path`` when the block ends
    without an error; otherwise it is removed. Leftovers of killed processes in the folder are
    removed too, see :func:`remove_leftovers`. A symbolic link is followed: its target is replaced.

    Args:
        path: A regular file, or an unused name in an existing folder.
        durable: Also wait until the file is on disk, so that it survives a power cut.

    Raises:
        OSError: The system refused (permission, space), or ``path`` is not a regular file.
    """
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(target))
    if target.exists() and not target.is_file():
        code = errno.EISDIR if target.is_dir() else errno.EINVAL
        reason = os.strerror(code) if target.is_dir() else "not a regular file"
        raise OSError(code, reason, str(target))
    if durable or target.parent not in _swept:
        remove_leftovers(target.parent)
        _swept.add(target.parent)
    file, temporary = _open_neighbour(target)
    try:
        with file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            if fcntl is not None:  # before the close: an unlocked temporary counts as a leftover
                temporary.replace(target)
        if fcntl is None:  # Windows cannot rename open files
            temporary.replace(target)
    finally:
        with suppress(OSError):
            temporary.unlink()
    if durable:
        _sync_directory(target.parent)


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """Make a hidden folder inside ``folder``; move its content away when that is complete.

    The hidden folder is removed at the end of the block if it still exists, or later by
    :func:`remove_leftovers`.

    Raises:
        OSError: The system refused.
    """
    remove_leftovers(folder)
    path = folder / f".new.{_host()}-{secrets.token_hex(6)}.tmp"
    path.mkdir()
    descriptor = -1
    try:
        if fcntl is not None:
            descriptor = os.open(path, os.O_RDONLY)
            _lock(descriptor)
        yield path
    finally:
        with suppress(OSError):
            shutil.rmtree(path)
        if descriptor >= 0:
            os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders that killed processes left in a folder.

    A running process holds a lock on its temporary files. Some file systems share locks only
    within one host. So the leftovers of other hosts are removed only after a day without a change.
    What cannot be removed stays.
    """
    if fcntl is None:
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _TEMPORARY.fullmatch(entry.name)
            if match is None:
                continue
            with suppress(OSError):
                age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if match["host"] == _host() or age > _DAY_SECONDS:
                    _remove_unlocked(Path(entry.path), entry.is_dir(follow_symlinks=False))


def _remove_unlocked(path: Path, is_folder: bool) -> None:
    # Opened for writing, because NFS cannot lock a file that is only read.
    descriptor = os.open(path, (os.O_RDONLY if is_folder else os.O_RDWR) | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_folder:
            shutil.rmtree(path)
        else:
            path.unlink()
    finally:
        os.close(descriptor)


def _open_neighbour(target: Path) -> tuple[IO[bytes], Path]:
    """Open a new locked temporary file beside ``target``; return the file and its path."""
    while True:
        # Cut, because names may have at most 255 bytes and a character may take four.
        name = f".{target.name[:48]}.{_host()}-{secrets.token_hex(6)}.tmp"
        path = target.with_name(name)
        file = path.open("xb")
        if fcntl is None:
            return file, path
        _lock(file.fileno())
        if os.fstat(file.fileno()).st_nlink:
            return file, path
        file.close()  # another process removed it as a leftover before it was locked


def _lock(descriptor: int) -> None:
    with suppress(OSError):  # a file system without locks: then no process can remove it either
        fcntl.flock(descriptor, fcntl.LOCK_EX)


@functools.cache
def _host() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


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


def replace_text(path: Path, text: str) -> None:
    """Replace a text file as a whole, without secrets; a failure leaves the old content.

    Raises:
        OSError: See :func:`replacing`.
    """
    with replacing(path) as file:
        file.write(KNOWN.text(text).encode("utf-8", "backslashreplace"))


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace a text file as a whole, and create its missing folders.

    Raises:
        OSError: See :func:`replacing`.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_text(target, text)


def append_text(path: Path, text: str) -> None:
    """Add text without secrets to an existing file; a failure removes what was already added.

    Raises:
        OSError: The file or its folder is gone, or the disk is full.
    """
    append_bytes(path, KNOWN.text(text).encode("utf-8", "backslashreplace"))


def append_bytes(path: Path, data: bytes) -> None:
    """Add bytes at the end of an existing file; a failure removes what was already added.

    Raises:
        OSError: The file or its folder is gone, or the disk is full.
    """
    # A missing file is not created: its beginning would be missing. O_BINARY keeps Windows from
    # translating line ends.
    flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        before = os.fstat(descriptor).st_size
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        except OSError:
            os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    # Best effort: some file systems refuse to open or to sync a directory.
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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
