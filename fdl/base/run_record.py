"""The folder of a run that ``fdl`` makes and a training takes over: its files, and who writes them.

``fdl`` makes a folder for each start and names it in :data:`DIRECTORY_VARIABLE`. A program that
keeps run directories itself either takes the folder over (:func:`claim`), or has one elsewhere and
says where (:func:`hand_over`). The first run directory of a program does so; later ones are runs of
their own.

Imported on the warm path: only ``os`` at module top.

A training listens at a socket in a folder of its user, and ``run.json`` names it. That file may
come from somebody else, so the name of the socket is also known from the path of the run alone.
"""

# ruff: noqa: PTH100, PTH104, PTH108, PTH110, PTH113, PTH118, PTH120, PTH123, PTH208
from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from pathlib import Path

DIRECTORY_VARIABLE = "FDL_RUN_DIR"
"""Names the folder of its run to a program that ``fdl`` starts; it may write its metrics there."""

FOLDER_NAME = "%Y-%m-%dT%H-%M-%S"
"""How a folder is called after the time at which it is made."""

RECORD = "run.json"
CONFIG = "config.json"
ENVIRONMENT = "environment.json"
CODE = "code.diff"
LOG = "training.log"
OUTPUT = "output.log"
"""All that a program printed, if its training writes :data:`LOG` itself."""
METRIC_LINES = "metrics.jsonl"
SWEEP = "sweep.json"
"""In the folder of a sweep, beside the folders of its runs."""

_UNCLAIMED = ".unclaimed"
_MOVED = ".moved"
MOVED_RECORD = ".moved-run.json"
"""The record of a folder whose run is elsewhere."""


def offer(folder: str) -> None:
    """Let one run directory take the folder over.

    Raises:
        OSError: The folder cannot be written.
    """
    os.close(os.open(os.path.join(folder, _UNCLAIMED), os.O_WRONLY | os.O_CREAT, 0o666))


def claim(folder: str) -> bool:
    """Whether the caller is the one that takes the folder over, or says where its own is."""
    try:
        os.unlink(os.path.join(folder, _UNCLAIMED))
    except OSError:
        return False
    return True


def is_of_sweep(folder: str) -> bool:
    """Whether a sweep has made the folder, which compares its runs by their folders."""
    return os.path.isfile(os.path.join(os.path.dirname(folder), SWEEP))


def take_over(folder: str) -> None:
    """Leave the name of the log to the training; what the program prints gets another one.

    Raises:
        OSError: The folder cannot be written.
    """
    if os.path.exists(os.path.join(folder, LOG)):
        os.rename(os.path.join(folder, LOG), os.path.join(folder, OUTPUT))


def hand_over(folder: str, target: str) -> None:
    """Say in a folder that was claimed where the run is instead; it stops being a run.

    Raises:
        OSError: The folder cannot be written.
    """
    with open(os.path.join(folder, _MOVED), "w", encoding="utf-8") as file:
        file.write(target)
    os.rename(os.path.join(folder, RECORD), os.path.join(folder, MOVED_RECORD))


def moved_to(folder: str) -> str:
    """Where the run of a folder is instead; empty if it is here."""
    return _text(os.path.join(folder, _MOVED))


def come_back(folder: str) -> None:
    """Undo :func:`hand_over`: the run directory that it named does not exist.

    Raises:
        OSError: The folder cannot be written.
    """
    os.rename(os.path.join(folder, MOVED_RECORD), os.path.join(folder, RECORD))
    os.unlink(os.path.join(folder, _MOVED))


def clear_moved(folder: str) -> None:
    """Remove what :func:`hand_over` left.

    Raises:
        OSError: The folder cannot be written.
    """
    for name in (MOVED_RECORD, _MOVED):
        os.unlink(os.path.join(folder, name))


def holds_runs(folder: str) -> bool:
    """Whether runs are in a folder, each in a folder of its own."""
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    return any(os.path.isfile(os.path.join(folder, name, RECORD)) for name in names)


def process_facts() -> dict[str, object]:
    """Facts that identify this process, so that others can see whether it still runs."""
    facts: dict[str, object] = {"pid": os.getpid(), "host": host()}
    boot, began = boot_id(), started_ticks(os.getpid())
    if boot and began is not None:
        facts |= {"boot_id": boot, "process_started": began}
    return facts


def host() -> str:
    """The name of this machine."""
    if hasattr(os, "uname"):
        return os.uname().nodename
    import socket

    return socket.gethostname()


def boot_id() -> str:
    """An id that changes with every start of the machine; empty if the system has none."""
    return _text("/proc/sys/kernel/random/boot_id").strip()


def started_ticks(pid: int) -> int | None:
    """When a process was started, in the clock of the kernel; None without it, or without /proc."""
    # proc_pid_stat(5): the start time is field 22.
    fields = status(pid)
    return int(fields[19]) if len(fields) > 19 and fields[19].isdecimal() else None


def status(pid: int) -> list[str]:
    """What the kernel says of a process, from its state (field 3) on; empty if nothing."""
    # The program's name, field 2, may hold blanks and brackets.
    return _text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def job_record() -> dict[str, str]:
    """The entry of a record about its batch job, whose number stays when it is queued again."""
    number = os.environ.get("SLURM_JOB_ID")
    return {"job": f"slurm-{number}"} if number else {}


def git_commit(folder: str) -> str | None:
    """The commit that is checked out in the work tree around a folder.

    It reads the files of the repository itself, because starting git could hang on a network file
    system or on a repository of another user.
    """
    git = _git(folder)
    # In a linked work tree and in a submodule, it is a file that names the folder.
    beside, _, named = _text(git).strip().partition("gitdir: ")
    if named and not beside:
        git = os.path.join(os.path.dirname(git), named)
    head = _text(os.path.join(git, "HEAD")).strip()
    if not head.startswith("ref: "):
        return head or None
    reference = head.removeprefix("ref: ")
    shared = os.path.join(git, _text(os.path.join(git, "commondir")).strip())
    if loose := _text(os.path.join(shared, *reference.split("/"))).strip():
        return loose
    listed = _text(os.path.join(shared, "packed-refs")).splitlines()
    packed = (line.split(" ", 1) for line in listed)
    return next((pair[0] for pair in packed if pair[1:] == [reference]), None)


LOCKS = ("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml")
"""Lock files that also name the version of flodl in one format."""
_LOCKS = (*LOCKS, "pixi.lock", "conda-lock.yml", "Pipfile.lock")


def lock_file(folder: str) -> dict[str, str] | None:
    """The name and the SHA-256 of the nearest lock file in a folder or above it, if there is one.

    It is looked for up to the top of the git repository.
    """
    import hashlib

    place, above = os.path.abspath(folder), ""
    while place != above:
        for name in _LOCKS:
            try:
                with open(os.path.join(place, name), "rb") as file:
                    return {"file": name, "sha256": hashlib.sha256(file.read()).hexdigest()}
            except OSError:
                continue
        if os.path.lexists(os.path.join(place, ".git")):
            return None
        place, above = os.path.dirname(place), place
    return None


def in_repository(path: str) -> bool:
    """Whether a file or folder is below a git repository."""
    return os.path.lexists(_git(path))


def _git(path: str) -> str:
    """The nearest ``.git`` in a folder or above it; it exists unless there is none."""
    place, above = os.path.abspath(path), ""
    while place != above and not os.path.lexists(os.path.join(place, ".git")):
        place, above = os.path.dirname(place), place
    return os.path.join(place, ".git")


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def name_for(run: Path) -> str:
    """The name of the socket of a run directory."""
    import hashlib

    return hashlib.sha256(os.fsencode(os.path.realpath(run))).hexdigest()[:16] + ".sock"


def folder_names() -> tuple[str, str]:
    """The names of the folders for sockets: in the run-time folder of the user, and elsewhere."""
    return "flodl", f"flodl-{os.geteuid()}"


def is_private(folder: Path) -> bool:
    """Whether a path is a folder, no link, that only this user can use.

    Raises:
        OSError: There is nothing.
    """
    found = folder.lstat()
    return (
        stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    )


def is_named_for(run: Path, path: Path) -> bool:
    """Whether a path is that of the socket which a training of this user makes for a run."""
    named = path.name == name_for(run) and path.parent.name in folder_names()
    return named and not path.is_symlink()


def peer(channel: socket.socket) -> int | None:
    """The user id of the other end; None if the system does not tell it.

    Without it, the mode of the folder alone keeps other users out.
    """
    import socket
    import struct

    if not hasattr(socket, "SO_PEERCRED"):
        return None
    form = "iII"
    data = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    return int(struct.unpack(form, data)[1])


RESUME = "--resume"


def without_resume(words: Sequence[str]) -> list[str]:
    """Words of a command line without the option and its value."""
    kept: list[str] = []
    follows = False
    for word in words:
        # A bare `--resume` has no value to leave out.
        is_value = follows and not word.startswith("-")
        follows = word == RESUME
        if not (is_value or follows or word.startswith(f"{RESUME}=")):
            kept.append(word)
    return kept
