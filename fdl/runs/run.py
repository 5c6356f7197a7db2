"""One run directory, read from its files."""

from __future__ import annotations

import json
import os
import re
import stat
from datetime import datetime
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from fdl.base.errors import FdlError, UsageError, failing
from fdl.base.files import rewrite
from fdl.base.masking import KNOWN
from fdl.base.own_files import open_own, put_own, read_json
from fdl.base.run_record import FOLDER_NAME, boot_id, host, started_ticks, status
from fdl.runs.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterable


def is_gone(record: dict[str, Any]) -> bool:
    """Whether a run with the state ``running`` cannot be running: its process has ended.

    If this cannot be known (another machine, a container, an older record), the answer is no.

    Args:
        record: A run's ``run.json``. It may hold ``pid``, ``host``, ``boot_id`` and
            ``process_started``, the process's start in clock ticks since the machine's start.
    """
    pid = record.get("pid")
    if not isinstance(pid, int) or pid <= 0 or record.get("host") != host():
        return False
    boot, here = record.get("boot_id"), boot_id()
    if boot and here and boot != here:
        return True
    if not _exists(pid):
        return True
    began, now = record.get("process_started"), started_ticks(pid)
    # Another process may have the same number by now.
    return isinstance(began, int) and now is not None and began != now


def _exists(pid: int) -> bool:
    if os.name == "nt":
        # On Windows, signal 0 would end the process.
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # another user's
    # An ended process that its parent has not yet reaped.
    return status(pid)[:1] != ["Z"]


NOTES = "notes.json"

_TAG = re.compile(r"[^\W_][\w.+-]*")
_TIME = re.compile(r"\d{4}-\d\d")


class Notes(NamedTuple):
    """What people wrote about a run."""

    tags: tuple[str, ...] = ()
    note: str = ""


def read_notes(folder: Path) -> Notes:
    """The notes of a run; empty without a readable file."""
    content = read_json(f"{folder}{os.sep}{NOTES}") or {}
    tags, note = content.get("tags"), content.get("note")
    listed = tags if isinstance(tags, list) else []
    return Notes(
        tuple(dict.fromkeys(tag for tag in listed if isinstance(tag, str))),
        note if isinstance(note, str) else "",
    )


def require_tag(word: str) -> str:
    """Return ``word`` if it can be a tag.

    Raises:
        UsageError: It has other characters, or looks like a run.
    """
    if not _TAG.fullmatch(word) or word == "last" or _TIME.match(word):
        raise UsageError(
            f"`{word}` is neither a run nor a tag",
            hint="a tag has letters, digits and . _ + - only, and is not a time or `last`",
        )
    return word


def change(
    folder: Path,
    *,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
    note: str | None = None,
) -> Notes:
    """Change the notes of a run in one step.

    Args:
        folder: The run.
        add: Tags to add behind the others.
        remove: Tags to remove; those that it does not have are ignored.
        note: The new note; empty removes it, None keeps it.

    Returns:
        The notes of the run from now on.

    Raises:
        FdlError: The file is damaged, has changed meanwhile or cannot be written.
    """
    file = folder / NOTES
    old, content = _content(file)
    before = read_notes(folder)
    gone = set(remove)
    after = Notes(
        tuple(tag for tag in dict.fromkeys((*before.tags, *add)) if tag not in gone),
        before.note if note is None else note,
    )
    if after == before:
        return after
    content.update(tags=KNOWN.texts(list(after.tags)), note=KNOWN.text(after.note))
    new = (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    if old is not None:
        rewrite(file, old, new, name=str(file))
        return after
    with failing(f"{file} cannot be written", hint=f"check the permissions of {folder}"):
        put_own(folder, file, new)
    return after


def _content(file: Path) -> tuple[bytes | None, dict[str, Any]]:
    """The bytes of the file and its object, whose unknown keys are kept."""
    try:
        with open_own(file) as stream:
            old = stream.read()
    except FileNotFoundError:
        return None, {}
    except OSError as problem:
        raise FdlError(f"{file} cannot be read: {problem.strerror}") from None
    content = read_json(file)
    if content is None:
        raise FdlError(
            f"{file} is damaged: it is not a JSON object",
            hint="restore it from a copy, or remove the file",
        )
    return old, content


class Setting(NamedTuple):
    """One recorded value of a run, without secrets, and its origin."""

    value: object
    origin: str


def settings(run: Run) -> dict[str, Setting]:
    """The run's configuration: name of the program's argument -> value, without its secrets.

    Raises:
        FdlError: Its ``config.json`` cannot be read.
    """
    from fdl.runs import resolved

    return {name: Setting(*pair) for name, pair in resolved.settings(str(run.path)).items()}


def variables(run: Run) -> dict[str, Setting] | None:
    """The variables that the manifest gave a run: name -> value, without its secrets.

    None if the run was recorded without them.
    """
    found = run.record.get("variables")
    if not isinstance(found, dict):
        return None
    return {
        str(name): Setting(str(one.get("value", "")), str(one.get("origin", "")))
        for name, one in found.items()
        if isinstance(one, dict)
    }


RECORD = "run.json"
CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.csv"
LOG = "training.log"
REPORT = "report.html"
LATEST = "last.fdl"
CHECKPOINTS = (LATEST, "best.fdl", "model.fdl")

LISTED_FILES = (RECORD, METRICS, NOTES)
"""The files of each run that a list of runs reads."""

RUNNING, DEAD, DAMAGED = "running", "dead", "damaged"
STATES = (RUNNING, "complete", "interrupted", "diverged", "failed", DEAD)
"""All states of a run. ``dead``: its record says running, but its process has ended."""

LISTED_STATES = (*STATES, DAMAGED)
"""The same, and ``damaged``: its record cannot be read."""

_NAME_LENGTH = len("2026-01-31T10-00-00")


class Run:
    """One run.

    Attributes:
        path: Its folder, as it was found.
        record: The content of ``run.json``.
        state: One of :data:`LISTED_STATES`.
        problem: Why the run is damaged; else empty.
        is_linked: Whether its path was found through a link, so that the run is another folder's.
    """

    def __init__(self, path: Path, record: dict[str, Any], problem: str = "") -> None:
        self.path = path
        self.record = record
        self.problem = problem
        self.is_linked = os.path.islink(path)  # noqa: PTH114 - `Path` takes twice as long
        self.state: str = record["state"]
        if self.state == RUNNING and is_gone(record):
            self.state = DEAD

    @property
    def name(self) -> str:
        """The folder's name: the time at which the run began."""
        return self.path.name

    @property
    def title(self) -> str:
        """The name that it was given, or that of its folder."""
        given = self.record.get("name")
        return given if isinstance(given, str) and given else self.name

    @property
    def age(self) -> tuple[float, int]:
        """Sort key by start. A second run that began in the same second ends in ``-2``."""
        attempt = self.name[_NAME_LENGTH + 1 :]
        started = self.started or _time_in(self.name)
        began = started.timestamp() if started else 0.0
        return began, int(attempt) if attempt.isdecimal() else 1

    @cached_property
    def started(self) -> datetime | None:
        """When the run began."""
        return _moment(self.record.get("started"))

    @cached_property
    def finished(self) -> datetime | None:
        """When the run ended; None while it runs, or if its end was not recorded."""
        return _moment(self.record.get("finished"))

    @property
    def seconds(self) -> float | None:
        """Seconds from start to end; until now for a running one; None if unknown."""
        if self.started is None:
            return None
        end = self.finished
        if end is None and self.state == RUNNING:
            end = datetime.now().astimezone()
        if end is None:
            end = self._last_sign
        return max((end - self.started).total_seconds(), 0.0) if end else None

    @property
    def epochs(self) -> int:
        """Completed epochs, according to its files."""
        recorded = self.record.get("epochs")
        counted = self.metrics.epochs
        return max(recorded if isinstance(recorded, int) else 0, counted)

    @property
    def resumed_from(self) -> str:
        """The recorded checkpoint or run folder that it continues; or empty."""
        origin = self.record.get("resumed_from")
        return origin if isinstance(origin, str) else ""

    @property
    def imported_from(self) -> str:
        """What was imported: the path of the files that another program wrote; or empty."""
        origin = self.record.get("imported_from")
        path = origin.get("path") if isinstance(origin, dict) else None
        return path if isinstance(path, str) else ""

    @property
    def predecessor(self) -> str:
        """The name of the run it continues, or empty."""
        origin = PurePath(self.resumed_from)
        return origin.parent.name if origin.suffix == ".fdl" else origin.name

    def continues(self, other: Run) -> bool:
        """Whether it was resumed from another run.

        The project may have been moved, so the names of the run's folder and of the folder above
        decide. Runs of two sweeps often have the same name.
        """
        origin = PurePath(self.resumed_from)
        folder = origin.parent if origin.suffix == ".fdl" else origin
        parts = tuple(part for part in folder.parts[-2:] if part != os.pardir)
        is_fitting = bool(parts) and other.path.absolute().parts[-len(parts) :] == parts
        return is_fitting and other.path != self.path

    @property
    def is_resumable(self) -> bool:
        """Whether it stopped before its end and left a state to resume from."""
        stopped = self.state in ("interrupted", "failed", DEAD)
        return stopped and (self.path / LATEST).is_file()

    @property
    def error(self) -> str:
        """The error that ended it, or empty."""
        error = self.record.get("error")
        return error if isinstance(error, str) else ""

    @cached_property
    def metrics(self) -> Metrics:
        """Its table of metrics; empty before the first epoch."""
        metrics = Metrics.read(f"{self.path}{os.sep}{METRICS}")
        if metrics.names:
            return metrics
        if self.imported_from:
            return Metrics.of_program(self.path, unit="step")
        # fdl wrote the record, so the metrics are in the program's own format.
        return Metrics.of_program(self.path) if "argv" in self.record else metrics

    @property
    def last_metrics(self) -> dict[str, float]:
        """The metrics of the last epoch; of a run that has steps, the last value of each metric."""
        by_step = self.imported_from or self.metrics.unit == "step"
        return self.metrics.latest() if by_step else self.metrics.last()

    @cached_property
    def settings(self) -> dict[str, Setting]:
        """Its configuration, without its secrets; empty if it cannot be read."""
        try:
            return settings(self)
        except FdlError:
            return {}

    @cached_property
    def notes(self) -> Notes:
        """Its tags and its note."""
        return read_notes(self.path)

    def environment(self) -> dict[str, Any]:
        """The content of ``environment.json``; empty if it is missing or broken."""
        return read_json(self.path / ENVIRONMENT) or {}

    def files(self) -> list[tuple[str, int]]:
        """Name and size in bytes of every file in the folder, sorted; links are not followed."""
        found = []
        for folder, folders, names in os.walk(self.path):
            folders.sort()
            for name in names:
                file = Path(folder, name)
                try:
                    size = file.lstat().st_size
                except OSError:
                    continue  # deleted meanwhile
                found.append((file.relative_to(self.path).as_posix(), size))
        return sorted(found)

    @property
    def bytes(self) -> int:
        """The total size of the folder's files in bytes."""
        return sum(size for _, size in self.files())

    @property
    def _last_sign(self) -> datetime | None:
        """When a dead run last wrote one of its files."""
        written = []
        for name in (METRICS, LOG, *CHECKPOINTS):
            try:
                written.append((self.path / name).stat().st_mtime)
            except OSError:
                continue
        return datetime.fromtimestamp(max(written)).astimezone() if written else None


def read(path: Path) -> Run | None:
    """The run of a folder; None if the folder is not a run directory.

    A run directory has a ``run.json`` that names a state and a start, and a ``config.json``. Both
    are regular files, not links.
    """
    record = read_json(f"{path}{os.sep}{RECORD}")
    if record is None or record.get("state") not in STATES:
        return None
    run = Run(path, record)
    return run if run.started and _is_own_file(f"{path}{os.sep}{CONFIG}") else None


def damaged(path: Path) -> Run | None:
    """The folder of a run whose record cannot be read, as a run in the state ``damaged``.

    None for a sound run, and for a folder with a ``run.json`` that may belong to another program.
    """
    problem = flaw(path)
    if not problem:
        return None
    record = read_json(path / RECORD) or {}
    is_record = record.get("state") in STATES and _moment(record.get("started"))
    if not (is_record or _is_own_file(path / CONFIG) or _time_in(path.name)):
        return None
    return Run(path, {"state": DAMAGED}, problem)


def flaw(path: Path) -> str:
    """Why a folder with a run's record is not a run; else empty."""
    if not _is_own_file(path / RECORD) or read(path) is not None:
        return ""
    if not _is_own_file(path / CONFIG):
        return f"has a {RECORD}, and no {CONFIG} beside it"
    return f"has a {RECORD} that is broken"


def _is_own_file(path: str | Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:  # also in a folder that may not be entered
        return False


def _time_in(name: str) -> datetime | None:
    try:
        return datetime.strptime(name[:_NAME_LENGTH], FOLDER_NAME).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def _moment(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone() if isinstance(text, str) else None
    except (ValueError, OverflowError, OSError):
        return None
