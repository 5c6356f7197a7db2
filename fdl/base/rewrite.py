"""Replace a file in one step: completely, or not at all.

Every first command imports it: nothing beyond ``os`` and ``contextlib``.
"""

# pathlib would add a tenth to the start of every first command.
# ruff: noqa: PTH101, PTH103, PTH105, PTH107, PTH110, PTH116, PTH120, PTH123
from __future__ import annotations

import os
from contextlib import suppress

from fdl.base.errors import FdlError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


def put(file: str | Path, content: bytes, mode: int | None = None) -> None:
    """Write a whole file, and its folder if there is none. A link stays one.

    Args:
        file: The file.
        content: What it is to hold.
        mode: Its permissions, less the umask; None keeps the permissions and the owner it has.

    Raises:
        OSError: It cannot be written; it has its old content.
    """
    target = os.path.realpath(file)
    temporary = f"{target}.{os.getpid()}.tmp"
    old = os.stat(target) if mode is None and os.path.exists(target) else None
    # The file may be readable by its owner alone, and this is a copy of it.
    first = 0o600 if old else 0o666 if mode is None else mode
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(temporary, "wb", opener=lambda name, how: os.open(name, how, first)) as stream:
            stream.write(content)
            if old:
                stream.flush()
                os.fsync(stream.fileno())
        if old:
            with suppress(OSError, AttributeError):
                os.chown(temporary, old.st_uid, old.st_gid)
            os.chmod(temporary, old.st_mode & 0o7777)
        os.replace(temporary, target)
    except BaseException as problem:
        with suppress(OSError):
            os.remove(temporary)
        # A write to a full disk does not say to which file.
        if isinstance(problem, OSError) and problem.filename is None:
            problem.filename = str(file)
        raise


def rewrite(
    path: str | Path, old: bytes, new: bytes, *, name: str, error: type[FdlError] = FdlError
) -> None:
    """Write other contents where a file still has those that were read.

    Args:
        path: The file; permissions stay, and a link stays one.
        old: What it held when it was read.
        new: What it is to hold.
        name: What it is called in messages.
        error: What is raised.

    Raises:
        FdlError: It cannot be written, or has changed since it was read.
    """
    try:
        with open(path, "rb") as stream:
            has_changed = stream.read() != old
        if not has_changed:
            put(path, new)
    except OSError as problem:
        raise error(
            f"{name} cannot be written: {problem.strerror}; it is as it was",
            hint=f"check the permissions of {os.path.dirname(os.path.realpath(path))}",
        ) from None
    if has_changed:
        raise error(f"{name} has changed meanwhile; nothing was written", hint="try again")
