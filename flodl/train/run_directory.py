"""The trail a run leaves: one folder with what went in, what came out, and how it ended."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import socket
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from flodl.errors import RunDirectoryError
from flodl.files import replace_text
from flodl.monitor import CsvSink, HtmlSink, LogSink
from flodl.monitor.metadata import read_metadata
from flodl.train.environment import environment_report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

    from flodl.monitor import Monitor

EndState: TypeAlias = Literal["complete", "interrupted", "diverged", "failed"]
"""How a run can end; until then ``run.json`` says ``running``."""

_LAST = "last.fdl"


@final
class RunDirectory:
    """The folder of one run; made by :meth:`create`.

    As a context manager it records an exception that leaves the block before a Trainer has
    recorded the end of the run.

    ========================  ==================================================================
    ``config.json``           the configuration, values with their origins where they have one
    ``environment.json``      machine, versions, commit, and how the steps were carried out
    ``run.json``              state, times, epochs, error, process, what it continues
    ``metrics.csv``           one row per epoch
    ``training.log``          the lines of the terminal
    ``report.html``           the report page
    ``last.fdl``              the newest checkpoint, to resume from; finite, always complete
    ``best.fdl``              the model of the best epoch, where a Trainer was told to keep it
    ``model.fdl``             the trained model; only of a run that is complete
    ========================  ==================================================================
    """

    def __init__(
        self,
        path: Path,
        record: Mapping[str, Any],
        metadata: Mapping[str, Any],
        clock: Callable[[], datetime],
        resume: Path | None = None,
    ) -> None:
        self._path = path
        self._resume = resume
        self._record = dict(record)
        self._metadata = metadata
        self._environment = dict(metadata["environment"])
        self._clock = clock

    @classmethod
    def create(
        cls,
        root: str | os.PathLike[str],
        *,
        config: Mapping[str, Any] | None = None,
        resume: str | os.PathLike[str] | None = None,
        clock: Callable[[], datetime] = datetime.now,
    ) -> RunDirectory:
        """Make ``<root>/<local time>/`` for a run that begins now.

        The folder appears under its name only when it is complete. A run that continues another
        one gets a folder of its own, too, and leaves that of the other as it is.

        Args:
            root: Folder of all runs; made if missing. Under ``fdl`` a relative one counts from the
                project's root (``FDL_PROJECT_ROOT``), wherever the program stands.
            config: What the run was configured with, also kept in its checkpoints; a value may
                be a mapping ``{"value": …, "origin": "train/fdl.yml:9:13"}``.
            resume: What to continue: ``"last"`` (the newest run under ``root`` that has a
                checkpoint, is not complete and was not continued by another), the name of a run
                under ``root``, the folder of a run, or a checkpoint. Paths count from where
                ``root`` does.
            clock: Local time.

        Raises:
            RunDirectoryError: The root cannot be written, or there is nothing to resume.
            ValueError: ``config`` is not a mapping.
        """
        folder = _from_project(root)
        source = _checkpoint_to_resume(resume, folder) if resume is not None else None
        started = clock()
        metadata = {
            "config": read_metadata(config or {}),
            "environment": read_metadata(environment_report()),
        }
        record = {
            "state": "running",
            "started": _iso(started),
            "finished": None,
            "epochs": 0,
            "error": None,
            "resumed_from": str(source) if source is not None else None,
            **_process(),
        }
        files = {"config": metadata["config"], "environment": metadata["environment"]}
        staging = folder / f".new-{secrets.token_hex(6)}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            staging.mkdir()
            for name, content in {**files, "run": record}.items():
                replace_text(staging / f"{name}.json", _json(content))
            path = _publish(staging, folder, f"{started:%Y-%m-%dT%H-%M-%S}")
        except OSError as error:
            raise _refused(folder, error) from error
        finally:
            with suppress(OSError):
                shutil.rmtree(staging)
        return cls(path, record, metadata, clock, source)

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration as recorded: JSON data, values with their origins."""
        config: Mapping[str, Any] = self._metadata["config"]
        return config

    @property
    def last_checkpoint(self) -> Path:
        """Where the newest checkpoint goes."""
        return self._path / _LAST

    @property
    def best_checkpoint(self) -> Path:
        """Where the model of the best epoch goes."""
        return self._path / "best.fdl"

    @property
    def model_checkpoint(self) -> Path:
        """Where the trained model goes."""
        return self._path / "model.fdl"

    def resume_source(self) -> Path | None:
        """The checkpoint that this run continues; None for a run that begins anew."""
        return self._resume

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self._record["state"] == "running":
            state: EndState = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            self.finish(state, epochs=0, error=error)

    def attach(self, monitor: Monitor) -> None:
        """Let the monitor write ``metrics.csv``, ``training.log`` and ``report.html`` here."""
        monitor.set_identity(run=self._path.name)
        monitor.set_metadata(self._metadata)
        monitor.add_sink(CsvSink(self._path / "metrics.csv"))
        monitor.add_sink(LogSink(self._path / "training.log"))
        monitor.add_sink(HtmlSink(self._path / "report.html"))

    def add_environment(self, facts: Mapping[str, Any]) -> None:
        """Add to ``environment.json`` what became known in the course of the run.

        Args:
            facts: JSON values; an entry replaces an earlier one of the same name.

        Raises:
            RunDirectoryError: The file cannot be written.
        """
        self._environment.update(read_metadata(facts))
        try:
            replace_text(self._path / "environment.json", _json(self._environment))
        except OSError as failure:
            raise _refused(self._path, failure) from failure

    def finish(
        self, state: EndState, *, epochs: int, error: BaseException | str | None = None
    ) -> None:
        """Record how the run ended.

        Args:
            state: ``complete``, or what kept it from completing.
            epochs: Epochs that were completed.
            error: What went wrong.

        Raises:
            RunDirectoryError: ``run.json`` cannot be written.
        """
        if isinstance(error, BaseException):
            error = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self._record.update(state=state, finished=_iso(self._clock()), epochs=epochs, error=error)
        try:
            replace_text(self._path / "run.json", _json(self._record))
        except OSError as failure:
            raise _refused(self._path, failure) from failure


def _from_project(path: str | os.PathLike[str]) -> Path:
    return Path(os.environ.get("FDL_PROJECT_ROOT", "")) / path


def _checkpoint_to_resume(resume: str | os.PathLike[str], root: Path) -> Path:
    if resume == "last":
        return _newest_unfinished(root)
    path = _from_project(resume)
    if not path.exists() and (root / resume).is_dir():
        path = root / resume
    checkpoint = path / _LAST if path.is_dir() else path
    if not checkpoint.is_file():
        raise RunDirectoryError(
            f"there is no checkpoint {checkpoint} to resume from: name a run's folder or its "
            f"{_LAST}, or 'last' for the newest run that was not completed"
        )
    return checkpoint


def _newest_unfinished(root: Path) -> Path:
    """The checkpoint of the run begun last among those that have one and did not complete."""
    found: list[tuple[datetime, int, Path]] = []
    continued = set()
    complete = 0
    for checkpoint in root.glob(f"*/{_LAST}"):
        try:
            record = json.loads((checkpoint.parent / "run.json").read_text(encoding="utf-8"))
            state, started = record["state"], datetime.fromisoformat(record["started"])
            continued.add(Path(record["resumed_from"] or "").parent.name)
            written = checkpoint.stat().st_mtime_ns
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not a run's folder, or a broken one: it can still be named
        if state == "complete":
            complete += 1
        else:
            # Runs of one second are told apart by their checkpoints.
            found.append((started.astimezone(), written, checkpoint))
    found = [one for one in found if one[2].parent.name not in continued]
    if not found:
        why = "all of them are complete" if complete else f"none has a {_LAST}"
        raise RunDirectoryError(
            f"there is no run to resume under {root}: {why}; begin a new one without resume, or "
            "name the folder of a run to go on from"
        )
    return max(found)[2]


def _process() -> dict[str, object]:
    """Who runs this: lets others find out that a run which never recorded its end is dead."""
    facts: dict[str, object] = {"pid": os.getpid(), "host": socket.gethostname()}
    with suppress(OSError, IndexError, ValueError):  # systems without /proc
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        status = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
        # The start time is field 22; the program's name, field 2, may hold blanks and brackets.
        ticks = int(status.rpartition(")")[2].split()[19])
        facts |= {"boot_id": boot.strip(), "process_started": ticks}
    return facts


def _publish(staging: Path, root: Path, name: str) -> Path:
    """Give a finished folder its name, or the next free one: ``name-2``, ``name-3`` and so on."""
    attempt = 1
    while True:
        target = root / (name if attempt == 1 else f"{name}-{attempt}")
        if not os.path.lexists(target):
            try:
                # Two runs of the same second: renaming onto a folder with content fails.
                return staging.rename(target)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
        attempt += 1


def _refused(path: Path, error: OSError) -> RunDirectoryError:
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


def _iso(moment: datetime) -> str:
    return moment.astimezone().isoformat(timespec="seconds")


def _json(content: object) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
