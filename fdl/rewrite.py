"""A user's file that gets other contents in one step, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from fdl.errors import FdlError


def rewrite(
    path: str | Path, old: bytes, new: bytes, *, name: str, error: type[FdlError] = FdlError
) -> None:
    """Write other contents where a file still has those that were read.

    Permissions stay as they are, and a link is followed and stays one. Whatever happens on the way,
    the file holds either contents whole.

    Args:
        path: The file.
        old: What it held when it was read.
        new: What it is to hold.
        name: What it is called in messages.
        error: What is raised.

    Raises:
        FdlError: It cannot be written, or has changed since it was read.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        mode = target.stat().st_mode & 0o7777
        if target.read_bytes() != old:
            raise error(f"{name} has changed meanwhile; nothing was written", hint="try again")
        with temporary.open("xb") as stream:
            # The file may be readable by its owner alone, and this is a copy of it.
            temporary.chmod(0o600)
            stream.write(new)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(mode)
        temporary.replace(target)
    except OSError as problem:
        raise error(
            f"{name} cannot be written: {problem.strerror}; it is as it was",
            hint=f"check the permissions of {target.parent}",
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
