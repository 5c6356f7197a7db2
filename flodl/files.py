"""Files that are replaced or extended as a whole, never left half-written."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: str | os.PathLike[str], *, durable: bool = False) -> Iterator[IO[bytes]]:
    """Write ``path`` atomically: readers see the old file or the complete new one.

    The bytes go to a temporary neighbour that takes the place of ``path`` when the block ends well
    and is removed when it does not. A symbolic link is followed: its target is replaced.

    Args:
        path: A regular file, or a name that is free in an existing folder.
        durable: Also wait until the disk has it, so that a power cut cannot take it back.

    Raises:
        OSError: The system refused (permission, space), or ``path`` is no regular file.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        code = errno.EISDIR if target.is_dir() else errno.EINVAL
        reason = os.strerror(code) if target.is_dir() else "not a regular file"
        raise OSError(code, reason, str(target))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        with suppress(OSError):
            temporary.unlink()
    if durable:
        _sync_directory(target.parent)


def replace_text(path: Path, text: str) -> None:
    """Replace a text file as a whole; a failure leaves the old one.

    Raises:
        OSError: As :func:`replacing`.
    """
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def append_text(path: Path, text: str) -> None:
    """Add text at the end of an existing file; a failure takes back what was already added.

    Raises:
        OSError: The file or its folder is gone, or the disk is full.
    """
    # Not created where it is missing: its beginning would lack. Windows translates line ends
    # unless told that the file is binary.
    flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        before = os.fstat(descriptor).st_size
        left = memoryview(text.encode("utf-8", "backslashreplace"))
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        except OSError:
            os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    # Best effort: some file systems refuse to open or sync a directory.
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
