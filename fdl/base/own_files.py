"""Read and write files that somebody else may have put there, through no link.

A cloned project may bring a ``.fdl`` folder, and a run may come from another person. A link there
leads anywhere, and a name in a record may leave its folder. So fdl opens, replaces and deletes such
a file only if every part of its path, below a folder that the user named, is a real file or folder.

Imported on the warm path: only small modules at module top.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH100, PTH114, PTH115, PTH117, PTH118, PTH206
from __future__ import annotations

import errno
import os
import stat

from fdl.base.files import MOST_TEXT, WITHOUT_WAITING, open_bytes, put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, BinaryIO

    Path = str | os.PathLike[str]

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_TO_READ = os.O_RDONLY | WITHOUT_WAITING | _NO_LINK | getattr(os, "O_BINARY", 0)
_MOST_JSON = 16 << 20
"""Bytes of a JSON object that is read."""


def read_ahead(files: Iterable[str]) -> None:
    """Let the system read files that are needed soon, so that a disk reads many at once.

    Files that are missing, are links or cannot be read are left out.
    """
    advise = getattr(os, "posix_fadvise", None)
    if advise is None:
        return
    for file in files:
        try:
            descriptor = os.open(file, _TO_READ)
        except OSError:
            continue
        try:
            advise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        except OSError:
            pass
        finally:
            os.close(descriptor)


def inside(root: Path, *names: str) -> str:
    """The path of a file or folder below a folder, which may be a link itself. It need not exist.

    Raises:
        OSError: The path leaves the folder, or a part of it below the folder is a link.
    """
    top = os.path.abspath(root)
    path = os.path.normpath(os.path.join(top, *names))
    rest = os.path.relpath(path, top).split(os.sep)
    if rest[0] in (os.pardir, os.curdir) or os.path.isabs(rest[0]):
        raise _refused(path, f"it is not inside {top}")
    place = top
    for part in rest:
        place = os.path.join(place, part)
        _refuse_link(place)
    return path


def own(root: Path, path: Path) -> str:
    """The same for a whole path, which must lie below the folder."""
    return inside(root, os.path.relpath(path, root))


def is_name(text: object) -> bool:
    """Whether a text from a file is one part of a path: it names something inside a folder."""
    return (
        isinstance(text, str)
        and text not in ("", os.curdir, os.pardir)
        and not any(char in text for char in "/\\:\0")
    )


def put_own(root: Path, file: Path, content: bytes, mode: int | None = None) -> None:
    """Write a whole file below a folder, as :func:`put` does, but through no link.

    Raises:
        OSError: It cannot be written, or a part of its path is a link.
    """
    put(own(root, file), content, mode)


def open_own(file: Path) -> BinaryIO:
    """Open a file to read it, if it is a regular one: not a link, a pipe or a device.

    Raises:
        OSError: It cannot be opened, or is something else.
    """
    _refuse_link(file)
    return open_bytes(file)


def _refuse_link(file: Path) -> None:
    if os.path.islink(file):
        raise _refused(file, f"it is a link to {os.readlink(file)}, and fdl follows no link here")


def _content(file: Path, most: int) -> bytes:
    """The bytes of a file that :func:`open_own` would open, if they are not more than ``most``.

    A list of 10,000 runs reads 30,000 files, and a stream for each takes twice as long.
    """
    if not _NO_LINK:
        _refuse_link(file)
    try:
        descriptor = os.open(file, _TO_READ)
    except OSError:
        _refuse_link(file)
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", file)
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB", file)
        content = piece = os.read(descriptor, found.st_size + 1)
        # It may grow while it is read, and some file systems return less than was asked for.
        while piece and len(content) != found.st_size:
            piece = os.read(descriptor, 1 << 16)
            content += piece
        return content
    finally:
        os.close(descriptor)


def read_own(file: Path, errors: str = "strict") -> str:
    """The text of a file, opened by :func:`open_own`.

    Raises:
        OSError: It cannot be opened, is too large, or is something else.
        ValueError: It is not UTF-8.
    """
    return _content(file, MOST_TEXT).decode("utf-8", errors)


def read_json(file: Path) -> dict[str, Any] | None:
    """A JSON object from a file, opened by :func:`open_own`; None if no object can be read."""
    import json

    try:
        content = json.loads(_content(file, _MOST_JSON))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _refused(path: Path, why: str) -> OSError:
    return OSError(errno.ELOOP, f"{why}; look what it is, then remove it", str(path))
