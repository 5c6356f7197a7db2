"""What is typed becomes paths, and what is printed is safe to print."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

ROOT_VARIABLE = "FDL_PROJECT_ROOT"


def anchored(path: str | os.PathLike[str]) -> Path:
    """A path; a relative path starts at the root of the project if fdl has set one.

    Args:
        path: As typed; ``~`` stands for the home directory.
    """
    typed = Path(path)
    if str(typed).startswith("~"):
        with suppress(RuntimeError):  # ~user without a home directory
            typed = typed.expanduser()
    root = os.environ.get(ROOT_VARIABLE)
    return Path(root) / typed if root else typed


def source(typed: str, revision: str | None = None) -> str:
    """A checkpoint as typed: a path if it is one, else the repository unchanged.

    Args:
        typed: A repository, ``owner/name``, or the path of a directory or file.
        revision: The requested revision of a repository.

    Raises:
        ValueError: A revision was given and it is not a repository.
    """
    path = anchored(typed)
    if not path.exists() and not typed.startswith((".", "/", "~")):
        return typed
    if revision is not None:
        raise ValueError(f"{path} is a local path and has no revisions: remove --revision")
    return str(path)


def plain(text: str) -> str:
    """The text, which may come from anyone, with all invisible characters escaped, except newlines.

    Otherwise a key or label could move the cursor and overwrite earlier lines.
    """
    return "".join(
        char if char == "\n" or char.isprintable() else char.encode("unicode_escape").decode()
        for char in text
    )
