"""The folder of a run, and the contents of ``run.json``: which run to resume, which one to join.

The folder is a new one, or the one that ``fdl`` has made for this run.
"""

from __future__ import annotations

import errno
import json
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdl.base import run_record
from fdl.base.files import replace_text, staging
from fdl.base.run_record import RECORD, process_facts, started_ticks
from flodl import log
from flodl.errors import RunDirectoryError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


LAST = "last.fdl"
BEST = "best.fdl"
REHEARSAL = "FLODL_REHEARSE"
"""If set, a training is only rehearsed; names the file that gets the result as JSON."""

_CAN_GO_ON = ("running", "interrupted", "failed")


def checkpoint_to_resume(resume: str | os.PathLike[str], path: Path, root: Path) -> Path:
    """Return the checkpoint that a user names.

    Args:
        resume: ``"last"``, the name of a run, its folder, or a checkpoint.
        path: ``resume`` as a path.
        root: Folder of all runs.

    Raises:
        RunDirectoryError: There is no checkpoint.
    """
    if resume == "last":
        return _newest_unfinished(root)
    if not path.exists() and (root / resume).is_dir():
        path = root / resume
    return checkpoint_in(path)


def checkpoint_in(source: str | os.PathLike[str]) -> Path:
    """Return the checkpoint at a path: the file itself, or the newest one in a run directory.

    Raises:
        RunDirectoryError: There is no checkpoint.
    """
    path = Path(source)
    checkpoint = path / LAST if path.is_dir() else path
    if checkpoint.is_file():
        return checkpoint
    runs = sorted(path.glob(f"*/{LAST}"), key=lambda one: one.stat().st_mtime_ns)
    if runs:
        raise RunDirectoryError(
            f"{path} holds several runs and no {LAST} of its own: name one of them, such as "
            f"{runs[-1].parent}"
        )
    raise RunDirectoryError(
        f"there is no checkpoint {checkpoint} to resume from: name a run's folder or its "
        f"{LAST}, or 'last' for the newest run that was not completed"
    )


def _newest_unfinished(root: Path) -> Path:
    """Return the checkpoint of the newest run that has one, is incomplete and was not continued."""
    found: list[tuple[datetime, int, Path]] = []
    continued = set()
    complete = 0
    for checkpoint in root.glob(f"*/{LAST}"):
        try:
            record = json.loads((checkpoint.parent / RECORD).read_text(encoding="utf-8"))
            state, started = record["state"], datetime.fromisoformat(record["started"])
            continued.add(Path(record["resumed_from"] or "").parent.name)
            written = checkpoint.stat().st_mtime_ns
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not the folder of a run, or a broken one: users can still name it
        if state == "complete":
            complete += 1
        else:
            # If runs began in the same second, the newer checkpoint decides.
            found.append((started.astimezone(), written, checkpoint))
    found = [one for one in found if one[2].parent.name not in continued]
    if not found:
        why = "all of them are complete" if complete else f"none has a {LAST}"
        raise RunDirectoryError(
            f"there is no run to resume under {root}: {why}; begin a new one without resume, or "
            "name the folder of a run to continue"
        )
    return max(found)[2]


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return the content of ``run.json`` in a folder; None without a readable one."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def run_of_launch(
    root: Path, launch: Mapping[str, Any], *, restarted: bool, config: Mapping[str, Any] | None
) -> Path | None:
    """Return the folder of the run that a launch began before; the newest of several.

    Args:
        root: Folder of all runs.
        launch: The entries that its record must have.
        restarted: The launcher says that this same launch began it. Otherwise only the name is the
            same, for instance if a batch system starts a job again. Then the run must be neither
            complete nor diverged, its process must have ended, and its configuration must be the
            same.
        config: The current configuration; not compared if ``restarted``.
    """
    found = []
    for folder, record in _records(root):
        if any(record.get(name) != value for name, value in launch.items()):
            continue
        if restarted or (
            record.get("state") in _CAN_GO_ON
            and not _is_alive(record)
            and _config_of(folder) == config
        ):
            found.append((str(record.get("started")), folder.name, folder))
    return max(found)[2] if found else None


def publish(made: Path, root: Path, name: str) -> Path:
    """Give a finished folder its name, or the next free one: ``name-2``, ``name-3`` and so on.

    Raises:
        OSError: The root cannot be written.
    """
    attempt = 1
    while True:
        target = root / (name if attempt == 1 else f"{name}-{attempt}")
        if not os.path.lexists(target):
            try:
                # If two runs begin in the same second, renaming onto a folder with content fails.
                return made.rename(target)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
        attempt += 1


def _records(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in root.glob(f"*/{RECORD}"):
        if (record := read_record(path.parent)) is not None:
            yield path.parent, record


def _config_of(folder: Path) -> object:
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _is_alive(record: Mapping[str, Any]) -> bool:
    """Whether the process of a record still runs; False for a process of another host."""
    mine = process_facts()
    if record.get("host") != mine["host"] or record.get("boot_id") != mine.get("boot_id"):
        return False
    try:
        if "boot_id" not in mine:  # systems without /proc: another process may have this number
            import psutil

            return bool(psutil.pid_exists(int(record["pid"])))
        began = started_ticks(int(record["pid"]))
        return began is not None and began == record.get("process_started")
    except (ValueError, KeyError, TypeError):
        return False


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
