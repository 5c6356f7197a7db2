"""Locate a checkpoint: a directory on this machine, or a repository on the Hub."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NoReturn

from flodl.hf.source import CONFIG, Access, Checkpoint, Directory, path_is

_REPO_ID = re.compile(r"(?=.{1,96}\Z)(?:\w[\w.-]*/)?\w[\w.-]*", re.ASCII)


def locate(src: str | os.PathLike[str], access: Access | None = None) -> Checkpoint:
    """Find a checkpoint.

    An existing directory is used as it is. Otherwise a string like ``name`` or ``owner/name`` is a
    repository on the Hub, and its commit is resolved now. A string that can only be a path is not
    looked up on the network.

    Args:
        src: Directory or repository.
        access: How to reach the repository.

    Raises:
        FileNotFoundError: The path does not exist.
        NotADirectoryError: The path is a file.
        HubError: The repository or revision does not exist, or cannot be reached.
        MissingDependencyError: It is a repository, and huggingface_hub is not installed.
    """
    access = access or Access()
    path = _expanded(src)
    if os.fspath(src) and path_is(Path.is_dir, path):
        return Directory(path, access.subfolder)
    if path_is(Path.is_file, path):
        raise NotADirectoryError(
            f"{path} is a file: give the directory that holds {CONFIG} and the weights, "
            f"probably {path.parent}"
        )
    if not isinstance(src, str) or not _REPO_ID.fullmatch(src):
        _no_such_path(os.fspath(src))
    from flodl.hf.hub import Repository

    return Repository(src, access)


def _expanded(src: str | os.PathLike[str]) -> Path:
    try:
        return Path(src).expanduser()
    except RuntimeError:  # ~user without a home directory
        return Path(src)


def _no_such_path(src: str) -> NoReturn:
    hint = (
        "; of an address, give only the repository: owner/name"
        if "://" in src
        else "; a repository of the Hub is written owner/name"
    )
    raise FileNotFoundError(f"there is no directory {src!r}{hint}")
