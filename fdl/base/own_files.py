"""What fdl and trainings wrote themselves, in folders that somebody else may have filled.

A cloned project may bring a ``.fdl`` folder, and a run may come from another person. A link there
leads anywhere, and a name in a record may leave its folder. So fdl opens, replaces and deletes such
a file only if every part of its path, below a folder that the user named, is a real file or folder.

Imported on the warm path: only small modules at module top.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH100, PTH114, PTH115, PTH117, PTH118, PTH206
from __future__ import annotations

import os

from fdl.base.regular import open_bytes, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO


def inside(root: str | Path, *names: str) -> str:
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
        if os.path.islink(place):
            raise _refused(
                place, f"it is a link to {os.readlink(place)}, and fdl follows no link here"
            )
    return path


def own(root: str | Path, path: str | Path) -> str:
    """The same for a whole path, which must lie below the folder."""
    return inside(root, os.path.relpath(path, root))


def is_name(text: object) -> bool:
    """Whether a text from a file is one part of a path: it names something inside a folder."""
    return (
        isinstance(text, str)
        and text not in ("", os.curdir, os.pardir)
        and not any(char in text for char in "/\\:\0")
    )


def put_own(root: str | Path, file: str | Path, content: bytes, mode: int | None = None) -> None:
    """Write a whole file below a folder, as :func:`fdl.base.rewrite.put` does, but through no link.

    Raises:
        OSError: It cannot be written, or a part of its path is a link.
    """
    from fdl.base.rewrite import put

    put(own(root, file), content, mode)


def open_own(file: str | Path) -> BinaryIO:
    """Open a file to read it, if it is a regular one: not a link, a pipe or a device.

    Raises:
        OSError: It cannot be opened, or is something else.
    """
    if os.path.islink(file):
        raise _refused(file, f"it is a link to {os.readlink(file)}, and fdl follows no link here")
    return open_bytes(file)


def read_own(file: str | Path, errors: str = "strict") -> str:
    """The text of a file, opened by :func:`open_own`.

    Raises:
        OSError: It cannot be opened, is too large, or is something else.
        ValueError: It is not UTF-8.
    """
    with open_own(file) as stream:
        return whole(stream, errors)


def _refused(path: str | Path, why: str) -> OSError:
    from errno import ELOOP

    return OSError(ELOOP, f"{why}; look what it is, then remove it", str(path))
