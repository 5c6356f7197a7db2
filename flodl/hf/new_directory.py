"""Directories that are there with all that belongs into them, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def new_directory(path: Path) -> Iterator[None]:
    """Create a directory and those above it, and remove them again if the block fails.

    What was there before stays, and so does what others have put beside it meanwhile; a directory
    that was created here goes with all that the block has put into it.

    Args:
        path: The directory; it may be there.

    Raises:
        OSError: The system refused.
    """
    created = [one for one in (path, *path.parents) if not one.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        if created:
            shutil.rmtree(path, ignore_errors=True)
        for one in created[1:]:
            with suppress(OSError):  # it is not empty
                one.rmdir()
        raise
