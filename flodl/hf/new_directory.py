"""Create directories completely or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def new_directory(path: Path) -> Iterator[None]:
    """Create a directory and its parents, and remove them again if the block fails.

    Existing files stay, and so do files that other processes add meanwhile. A directory that was
    created here is removed with everything the block put into it.

    Args:
        path: The directory; it may exist already.

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
