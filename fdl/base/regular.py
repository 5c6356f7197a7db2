"""Files and folders that another program may have put there, read so that none of them can harm.

A pipe would wait for a writer, a link may lead to itself, and a folder may be unreadable. Each of
them counts as a file that cannot be read, and costs only itself.

Imported on the warm path: only small modules at module top.
"""

# The paths may be strings.
# ruff: noqa: PTH112, PTH118, PTH208
from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    Path = str | os.PathLike[str]

_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0)
_MOST_TEXT = 256 << 20
"""Bytes of a text that is read as a whole, such as a table of metrics."""


def _opener(path: str, flags: int) -> int:
    file = os.open(path, flags | _WITHOUT_WAITING)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return file


def open_bytes(path: Path) -> BinaryIO:
    """Open a regular file, also behind a link.

    Raises:
        OSError: It is not one, or cannot be read.
    """
    return open(path, "rb", opener=_opener)


def whole(stream: BinaryIO, errors: str = "strict") -> str:
    """The text of an open file.

    Raises:
        OSError: It cannot be read, or is too large.
        UnicodeDecodeError: It is not UTF-8.
    """
    if os.fstat(stream.fileno()).st_size > _MOST_TEXT:
        raise OSError(errno.EFBIG, f"it is larger than {_MOST_TEXT >> 20} MiB", stream.name)
    return stream.read().decode("utf-8", errors)


def read_text(path: Path, errors: str = "strict") -> str:
    """The text of a regular file.

    Raises:
        OSError: It is not one, cannot be read, or is too large.
        UnicodeDecodeError: It is not UTF-8.
    """
    with open_bytes(path) as stream:
        return whole(stream, errors)


def names(folder: Path) -> list[str]:
    """Sorted names of what a folder holds; none if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def subfolders(folder: Path) -> list[str]:
    """Sorted names of the folders in a folder, also behind links; those with a dot are left out."""
    # `DirEntry.is_dir` fails for a link to itself. One entry must not hide the others.
    found = (name for name in names(folder) if not name.startswith("."))
    return [name for name in found if os.path.isdir(os.path.join(folder, name))]
