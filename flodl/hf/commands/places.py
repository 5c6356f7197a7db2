"""Where the paths of a command line start."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

ROOT_VARIABLE = "FDL_PROJECT_ROOT"


def anchored(path: str | os.PathLike[str]) -> Path:
    """A path, relative ones from the root of the project where fdl has named one.

    Args:
        path: As typed; ``~`` stands for the home directory.
    """
    typed = Path(path)
    if str(typed).startswith("~"):
        with suppress(RuntimeError):  # ~somebody who has no home
            typed = typed.expanduser()
    root = os.environ.get(ROOT_VARIABLE)
    return Path(root) / typed if root else typed


def source(typed: str, revision: str | None = None) -> str:
    """A checkpoint as typed: the path where one is meant, else the repository unchanged.

    Args:
        typed: A repository, ``owner/name``, or the path of a directory or file.
        revision: What was asked for of a repository.

    Raises:
        ValueError: A revision of something that is no repository.
    """
    path = anchored(typed)
    if not path.exists() and not typed.startswith((".", "/", "~")):
        return typed
    if revision is not None:
        raise ValueError(f"{path} is no repository and has no revisions: leave --revision out")
    return str(path)
