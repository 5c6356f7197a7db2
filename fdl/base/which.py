"""Finding a program in the way its child process would. Imported on the warm path."""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH113, PTH118, PTH120
from __future__ import annotations

import os


def locate(name: str, path: str, cwd: str) -> str | None:
    """The file behind a program name, or None.

    Args:
        name: The name as written. A bare name is looked up; a path is relative to ``cwd``.
        path: The child's ``PATH``, which may differ from fdl's own.
        cwd: The child's working directory. Relative and empty ``PATH`` entries start there.
    """
    if os.path.dirname(name):
        candidates = [os.path.join(cwd, name)]
    else:
        candidates = [os.path.join(cwd, folder, name) for folder in path.split(os.pathsep)]
    for candidate in candidates:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None
