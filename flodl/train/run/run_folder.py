"""The folder of a run: a new one, or the one that ``fdl`` has made for it."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdl.base import run_record
from fdl.base.files import replace_text, staging
from flodl import log
from flodl.errors import RunDirectoryError
from flodl.train.run.run_records import publish, read_record

if TYPE_CHECKING:
    from collections.abc import Mapping


def placed(root: Path, name: str, files: Mapping[str, Any], offered: Path | None) -> Path:
    """Write the files of a run into its folder, and return it.

    Args:
        root: The folder of all runs.
        name: The name of a new folder.
        files: The content of each JSON file, by its name without ``.json``.
        offered: The folder that ``fdl`` has made. It is used if it is one for runs below ``root``.

    Raises:
        RunDirectoryError: The folder cannot be written.
    """
    if offered is not None and _is_meant(offered, root):
        take_over(offered, files)
        return offered
    path = new_folder(root, name, files)
    if offered is not None:
        hand_over(offered, path)
    return path


def new_folder(root: Path, name: str, files: Mapping[str, object]) -> Path:
    """Make a folder with these JSON files; it gets its name when it is complete."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with staging(root) as made:
            for file, content in files.items():
                replace_text(made / f"{file}.json", as_json(content))
            return publish(made, root, name)
    except OSError as error:
        raise refused(root, error) from error


def claimed(environ: Mapping[str, str]) -> Path | None:
    """The folder that ``fdl`` has made for this run; None for later runs of the program."""
    folder = environ.get(run_record.DIRECTORY_VARIABLE)
    return Path(folder) if folder and run_record.claim(folder) else None


def _is_meant(path: Path, root: Path) -> bool:
    """Whether the folder of ``fdl`` is one for runs below a root; that of a sweep always is."""
    return is_same(path.parent, root) or run_record.is_of_sweep(str(path))


def is_same(path: Path, other: Path) -> bool:
    """Whether two paths are one folder, which exists."""
    try:
        return path.samefile(other)
    except OSError:
        return False


def take_over(folder: Path, files: Mapping[str, Any]) -> None:
    """Write the files of a run into the folder that ``fdl`` has made; what it knows stays."""
    try:
        run_record.take_over(str(folder))
        record = (read_record(folder) or {}) | files["run"]
        for name, content in {**files, "run": record}.items():
            replace_text(folder / f"{name}.json", as_json(content))
    except OSError as error:
        raise refused(folder, error) from error


def hand_over(folder: Path, path: Path) -> None:
    """Say in the folder of ``fdl`` where the run is instead."""
    try:
        run_record.hand_over(str(folder), str(path.absolute()))
    except OSError as failure:
        log.debug(f"{folder} stays beside {path}: {failure}")


def refused(path: Path, error: OSError) -> RunDirectoryError:
    """The error for a run directory that cannot be written."""
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        remedy = "a file is in the way: remove it or choose another output directory"
    elif isinstance(error, PermissionError) or error.errno == errno.EROFS:
        remedy = "make it writable or choose another output directory"
    elif error.errno == errno.ENOSPC:
        remedy = "the disk is full: free some space or choose another output directory"
    else:
        remedy = "choose another output directory"
    return RunDirectoryError(
        f"cannot write the run directory {path}: {error.strerror or error}; {remedy}"
    )


def as_json(content: object) -> str:
    """The text of a file of a run."""
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
