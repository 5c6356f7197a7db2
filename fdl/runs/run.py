"""One run directory, read from its files."""

from __future__ import annotations

import os
from datetime import datetime
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from fdl.base.errors import FdlError
from fdl.runs.json_file import read_json
from fdl.runs.metrics import Metrics
from fdl.runs.notes import Notes, read as read_notes
from fdl.runs.process import is_gone

if TYPE_CHECKING:
    from fdl.runs.settings import Setting

RECORD = "run.json"
CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.csv"
LOG = "training.log"
REPORT = "report.html"
LATEST = "last.fdl"
CHECKPOINTS = (LATEST, "best.fdl", "model.fdl")

RUNNING, DEAD, DAMAGED = "running", "dead", "damaged"
STATES = (RUNNING, "complete", "interrupted", "diverged", "failed", DEAD)
"""All states of a run. ``dead``: its record says running, but its process has ended."""

LISTED_STATES = (*STATES, DAMAGED)
"""The same, and ``damaged``: its record cannot be read."""

_NAME_LENGTH = len("2026-01-31T10-00-00")
_NAME_FORM = "%Y-%m-%dT%H-%M-%S"


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
        self.is_linked = path.is_symlink()
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

    @property
    def started(self) -> datetime | None:
        """When the run began."""
        return _moment(self.record.get("started"))

    @property
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
        metrics = Metrics.read(self.path / METRICS)
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
        from fdl.runs.settings import settings

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
    if not all(_is_own_file(path / name) for name in (RECORD, CONFIG)):
        return None
    record = read_json(path / RECORD)
    if record is None or record.get("state") not in STATES:
        return None
    return Run(path, record) if _moment(record.get("started")) else None


def damaged(path: Path) -> Run | None:
    """The folder of a run whose record cannot be read, as a run in the state ``damaged``.

    None for a sound run, and for a folder with a ``run.json`` that may belong to another program.
    """
    if not _is_own_file(path / RECORD) or read(path) is not None:
        return None
    record = read_json(path / RECORD) or {}
    is_record = record.get("state") in STATES and _moment(record.get("started"))
    if not (is_record or _is_own_file(path / CONFIG) or _time_in(path.name)):
        return None
    return Run(path, {"state": DAMAGED}, flaw(path))


def flaw(path: Path) -> str:
    """Why a folder with a run's record is not a run; else empty."""
    if not _is_own_file(path / RECORD) or read(path) is not None:
        return ""
    if not _is_own_file(path / CONFIG):
        return f"has a {RECORD}, and no {CONFIG} beside it"
    return f"has a {RECORD} that is broken"


def _is_own_file(path: Path) -> bool:
    # Unlike these, methods of `Path` raise an error in a folder that may not be entered.
    return os.path.isfile(path) and not os.path.islink(path)  # noqa: PTH113, PTH114


def _time_in(name: str) -> datetime | None:
    try:
        return datetime.strptime(name[:_NAME_LENGTH], _NAME_FORM).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def _moment(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone() if isinstance(text, str) else None
    except (ValueError, OverflowError, OSError):
        return None
