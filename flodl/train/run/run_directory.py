"""The directory of a run: one folder with its inputs, its results, and how it ended."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from fdl.base.files import replace_text
from fdl.base.run_record import CODE, FOLDER_NAME, RECORD, job_record, process_facts
from fdl.base.shell_words import program_words
from flodl import log
from flodl.environment import environment_report
from flodl.errors import RunDirectoryError, WorkersFailed
from flodl.monitor.metadata import read_metadata
from flodl.monitor.report import HtmlSink
from flodl.monitor.sinks import CsvSink, LogSink
from flodl.ranks.launch.launcher import detect
from flodl.train.run.run_records import (
    BEST,
    IDENTITY,
    LAST,
    PACKAGES,
    REHEARSAL,
    ProgramRecord,
    as_json,
    checkpoint_to_resume,
    claimed,
    earlier_run,
    hand_over,
    is_same,
    launch_record,
    placed,
    program_start,
    read_record,
    recorded_argv,
    recorded_variables,
    refused,
    run_of_launch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

    from flodl.monitor import Monitor
    from flodl.ranks.launch.launcher import Launched

EndState: TypeAlias = Literal["complete", "interrupted", "diverged", "failed"]
"""How a run can end; before that ``run.json`` says ``running``."""

FOLDER_VARIABLE = "FLODL_RUN_DIR"
"""Names the folder that rank 0 writes, for other ranks that cannot detect it."""

_PATIENCE = 60.0
"""Seconds that other ranks wait for rank 0 to make its folder."""

_MADE_AT_FIRST = {"config.json", "environment.json", RECORD, CODE, PACKAGES}
"""Files of a run before its training begins."""

_programs: dict[Path, ProgramRecord] = {}
"""Records in progress, by folder; apart, because a RunDirectory is pickled for its ranks."""


@final
class RunDirectory:
    """The folder of one run; made by :meth:`create`.

    As a context manager, it records an exception that leaves the block if no Trainer has recorded
    the end of the run.

    ========================  ==================================================================
    ``config.json``           the configuration; values have their origins if they are known
    ``environment.json``      machine, versions, commit, and the engine that computed the steps
    ``run.json``              state, times, epochs, error, process, launch, resumed checkpoint
    ``code.diff``             changes of the source code against the commit
    ``packages.txt``          installed packages
    ``metrics.csv``           one row per epoch
    ``steps``                 the step curves; see :mod:`flodl.monitor.step_files`
    ``training.log``          the lines of the terminal
    ``media/``                images, histograms, texts, tables and curves, if there are any
    ``report.html``           the report page
    ``page/``                 what the live page shows; see :class:`flodl.monitor.PageFilesSink`
    ``last.fdl``              the newest checkpoint, to resume from; finite, always complete
    ``best.fdl``              the model of the best epoch, if a Trainer was told to keep it
    ``model.fdl``             the trained model; only if the run is complete
    ``acts.jsonl``            acts on the training while it ran, if there were any
    ``steps.trace``           samples and loss of every step, to compare runs
    ``samples.ledger``        which rank trained which samples, if there were several ranks
    ========================  ==================================================================
    """

    def __init__(
        self,
        path: Path | None,
        record: Mapping[str, Any],
        metadata: Mapping[str, Any],
        clock: Callable[[], datetime],
        resume: Path | None = None,
        *,
        restarted: bool = False,
        adopted: bool = False,
        root: Path | None = None,
    ) -> None:
        self._path = path
        self._resume = resume
        self._record = dict(record)
        self._metadata = metadata
        self._environment = dict(metadata["environment"])
        self._clock = clock
        self._restarted = restarted
        self._adopted = adopted
        self._root = root
        self._writes = root is None

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

        The folder gets its name only when it is complete. A run that continues another run gets its
        own folder and leaves the other folder unchanged.

        If a launcher started several ranks:

        - Rank 0 makes the folder. The objects of all other ranks write nothing.
        - If the launcher restarts all ranks, rank 0 uses the same folder again. The run then
          continues from its own newest checkpoint.
        - A new launch also uses the folder of an earlier launch with the same name (``--rdzv-id``,
          or the job of a batch system). The earlier run must have the same configuration and must
          be neither complete nor diverged. Its process must have ended.
        - The order of the calls tells several run directories of one program apart.

        If ``fdl`` has started the program, it has made a folder for the run. The first run
        directory of the program is this folder if it lies under ``root``, and always in a sweep,
        which compares the folders of its runs. Otherwise ``fdl`` adds what it knows to the folder
        under ``root`` and removes its own when the program ends.

        If SLURM has queued the job again, the run of the same job with the same configuration
        continues in its folder from its newest checkpoint. It must be neither complete nor
        diverged.

        Args:
            root: Folder of all runs; made if missing. Under ``fdl``, a relative path starts at the
                project's root (``FDL_PROJECT_ROOT``), not at the working directory. Ranks on
                several hosts need it on a shared disk.
            config: The configuration of the run, also kept in its checkpoints. A value may be a
                mapping ``{"value": …, "origin": "train/fdl.yml:9:13"}``.
            resume: What to continue: the name of a run under ``root``, the folder of a run, a
                checkpoint, or ``"last"``. ``"last"`` is the newest run under ``root`` that has a
                checkpoint, is not complete and was not continued by another run. Relative paths
                start where those of ``root`` do.
            clock: Returns the local time.

        Raises:
            RunDirectoryError: The root cannot be written, or there is nothing to resume.
            DistributedError: The environment of the launcher is incomplete.
            ValueError: ``config`` is not a mapping.
        """
        known = folder = _from_project(root)
        if asked := os.environ.get(REHEARSAL):
            # The command that rehearses a training removes this folder afterwards.
            folder = Path(asked).parent / "runs"
        plain = read_metadata(config or {})
        launched = detect(os.environ)
        launch = launch_record(launched) if launched is not None else {}
        if launched is not None and launched.rank > 0:
            metadata = {"config": plain, "environment": {}}
            return cls(None, launch, metadata, clock, root=folder)
        metadata = {"config": plain, "environment": read_metadata(environment_report())}
        if (earlier := earlier_run(folder, launched, launch, plain)) is not None:
            if (offered := claimed(os.environ)) is not None and not is_same(offered, earlier):
                hand_over(offered, earlier)
            return cls._go_on(earlier, launch, metadata, clock)
        source = None
        if resume is not None:
            source = checkpoint_to_resume(resume, _from_project(resume), known)
        started = clock()
        record = _first_record(started, plain, launched, source) | launch | process_facts()
        offered = None if asked else claimed(os.environ)
        name = started.strftime(FOLDER_NAME)
        path = placed(folder, name, {**metadata, "run": record}, offered)
        adopted = path == offered
        _programs[path] = ProgramRecord(path, folder)
        return cls(path, record, metadata, clock, source, adopted=adopted)

    @classmethod
    def _go_on(
        cls,
        path: Path,
        launch: Mapping[str, Any],
        metadata: Mapping[str, Any],
        clock: Callable[[], datetime],
    ) -> RunDirectory:
        """Continue the run of a launch that was started again."""
        record = read_record(path) or {}
        restarts = int(record.get("restarts") or 0) + 1
        source = record.get("resumed_from")
        run = cls(
            path,
            record,
            metadata,
            clock,
            Path(source) if source is not None else None,
            restarted=True,
        )
        run._begin_again({**launch, "restarts": restarts, **process_facts()})
        run.add_environment({})
        return run

    @property
    def path(self) -> Path:
        """The folder; on other ranks the folder of rank 0.

        Other ranks may have to wait for it. It is the folder that ``FLODL_RUN_DIR`` names, else the
        one whose ``run.json`` names this launch.

        Raises:
            RunDirectoryError: Rank 0 made no folder that this rank can see.
        """
        if self._path is None:
            self._path = self._folder_of_first()
        return self._path

    @property
    def typed(self) -> str:
        """The folder as a user would type it: from the project's root or the working directory."""
        for start in (os.environ.get("FDL_PROJECT_ROOT"), "."):
            if start and self.path.absolute().is_relative_to(Path(start).absolute()):
                return str(self.path.absolute().relative_to(Path(start).absolute()))
        return str(self.path)

    @property
    def writes(self) -> bool:
        """Whether this object writes; only the object of rank 0 does."""
        return self._writes

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration as recorded: JSON data, values with their origins."""
        config: Mapping[str, Any] = self._metadata["config"]
        return config

    @property
    def last_checkpoint(self) -> Path:
        """Path of the newest checkpoint."""
        return self.path / LAST

    @property
    def best_checkpoint(self) -> Path:
        """Path of the model of the best epoch."""
        return self.path / BEST

    @property
    def model_checkpoint(self) -> Path:
        """Path of the trained model."""
        return self.path / "model.fdl"

    @property
    def sample_ledger(self) -> Path:
        """Path of the sample ledger, which says which rank trained which samples."""
        return self.path / "samples.ledger"

    def for_rank(self, rank: int) -> RunDirectory:
        """Return the object that one rank uses, if the directory was made before the ranks began.

        Rank 0 keeps this object and records the launch. If the ranks have been started before, the
        run continues from its own newest checkpoint. The objects of the other ranks write nothing.

        Raises:
            RunDirectoryError: ``run.json`` cannot be written.
            DistributedError: The environment of the launcher is incomplete.
        """
        if rank > 0:
            return RunDirectory(
                self._path,
                self._record,
                self._metadata,
                self._clock,
                root=self._root or self.path.parent,
            )
        launched = detect(os.environ)
        if launched is not None and self._record.get("launch") is None:
            self._record = read_record(self.path) or self._record
            self._restarted = launched.restart > 0
            self._begin_again({**launch_record(launched), "restarts": launched.restart})
        return self

    def take_over(self) -> None:
        """Write from now on: the rank that has written is lost.

        Raises:
            RunDirectoryError: ``environment.json`` cannot be read.
        """
        try:
            text = (self.path / "environment.json").read_text(encoding="utf-8")
            self._environment |= json.loads(text)
        except (OSError, ValueError) as failure:
            raise RunDirectoryError(
                f"cannot read {self.path / 'environment.json'}: {failure}"
            ) from failure
        self._writes = True

    def hand_over(self) -> None:
        """Write no more: another rank does."""
        self._writes = False

    def restart_source(self) -> Path | None:
        """The checkpoint of this run itself, if its ranks had to be started again."""
        if self._writes and self._restarted and self.last_checkpoint.is_file():
            return self.last_checkpoint
        return None

    def resume_source(self) -> Path | None:
        """The checkpoint that this run continues from; None for a new run.

        None on all ranks but rank 0, which reads it for all.
        """
        return self.restart_source() or self._resume

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Record the error that ended the run, unless its end is recorded already.

        If one rank fails, the others are stopped and record an interruption or a lost connection.
        That failure replaces their record.

        Raises:
            RunDirectoryError: ``run.json`` cannot be written.
        """
        if not self._writes:
            return
        self._reread()
        state = self._record["state"]
        if isinstance(error, WorkersFailed):
            if state in ("running", "interrupted", "failed"):
                what = str(error).partition("\n")[0]
                self.finish("failed", epochs=self._record["epochs"], error=what)
        elif state == "running":
            end: EndState = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            self.finish(end, epochs=self._record["epochs"], error=error)

    def attach(self, monitor: Monitor) -> None:
        """Let the monitor write metrics, step curves, log, media and report here."""
        if not self._writes:
            return
        monitor.set_identity(run=self.path.name)
        monitor.set_metadata(self._metadata)
        monitor.add_sink(CsvSink(self.path / "metrics.csv"))
        monitor.add_sink(LogSink(self.path / "training.log"))
        monitor.add_sink(HtmlSink(self.path / "report.html", media_kept=monitor.media_kept))
        monitor.write_run(self.path)

    def add_environment(self, facts: Mapping[str, Any]) -> None:
        """Add facts to ``environment.json`` during the run.

        Args:
            facts: JSON values; an entry replaces an earlier one of the same name.

        Raises:
            RunDirectoryError: The file cannot be written.
        """
        self._environment.update(read_metadata(facts))
        self._write("environment.json", self._environment)

    def add_record(self, facts: Mapping[str, Any]) -> None:
        """Add facts to ``run.json`` during the run.

        Args:
            facts: JSON values; an entry replaces an earlier one of the same name.

        Raises:
            RunDirectoryError: The file cannot be written.
        """
        self._reread()
        self._record.update(read_metadata(facts))
        self._write(RECORD, self._record)

    def finish(
        self, state: EndState, *, epochs: int, error: BaseException | str | None = None
    ) -> None:
        """Record how the run ended.

        Args:
            state: ``complete``, or why it is not complete.
            epochs: Number of complete epochs.
            error: The error that ended it.

        Raises:
            RunDirectoryError: ``run.json`` cannot be written.
        """
        self._wait_for_program()
        if isinstance(error, BaseException):
            error = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self._reread()
        self._record.update(state=state, finished=_iso(self._clock()), epochs=epochs, error=error)
        self._write(RECORD, self._record)

    def _withdraw(self) -> None:
        """Remove the folder of a run that never began, because its resume was refused.

        Otherwise a run without epochs would be the last one. The folder stays if it holds a file
        that :meth:`create` has not made, if ``fdl`` has made it, if the run is continued in it, or
        if a launcher started this process: then others may look for the folder.
        """
        own = self._record.get("pid") == os.getpid() and not self._record.get("launch")
        if not self._writes or self._restarted or self._adopted or not own:
            return
        self._wait_for_program()
        try:
            names = {one.name for one in self.path.iterdir()}
            if not names <= _MADE_AT_FIRST:
                return
            for name in names:
                (self.path / name).unlink()
            self.path.rmdir()
        except OSError as failure:
            log.debug(f"{self.path} stays: {failure}")
            return
        self._writes = False

    def _wait_for_program(self) -> None:
        if self._writes and (program := _programs.pop(self.path, None)) is not None:
            program.wait()

    def _begin_again(self, facts: Mapping[str, Any]) -> None:
        self._record.pop("ledger", None)  # the sample ledger grows further, or is cut back
        self._record.update(state="running", finished=None, error=None, **facts)
        self._write(RECORD, self._record)

    def _reread(self) -> None:
        """Take over what other processes recorded: the ranks, or the process that started them."""
        if self._writes:
            self._record |= read_record(self.path) or {}

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        if not self._writes:
            return
        try:
            replace_text(self.path / name, as_json(content))
        except OSError as failure:
            raise refused(self.path, failure) from failure

    def _folder_of_first(self) -> Path:
        if named := os.environ.get(FOLDER_VARIABLE):
            return Path(named)
        assert self._root is not None  # noqa: S101 - only rank 0 always knows its folder
        wanted = {name: self._record[name] for name in (*IDENTITY, "rendezvous")}
        limit = time.monotonic() + _PATIENCE
        while time.monotonic() < limit:
            found = run_of_launch(self._root, wanted, restarted=True, config=None)
            if found is not None:
                return found
            time.sleep(0.05)
        raise RunDirectoryError(
            f"rank 0 has made no run directory under {self._root} that can be seen from here: put "
            f"the folder of all runs on a disk that all machines share, or name it in "
            f"{FOLDER_VARIABLE}"
        )


def _first_record(
    started: datetime, config: Mapping[str, Any], launched: Launched | None, source: Path | None
) -> dict[str, Any]:
    """The record of a run that begins, without its launch and its process."""
    return {
        "state": "running",
        "started": _iso(started),
        "finished": None,
        "epochs": 0,
        "error": None,
        "argv": recorded_argv([sys.argv[0], *program_words()], config, os.environ),
        "variables": recorded_variables(os.environ),
        **program_start(config),
        "launched_ranks": launched.world_size if launched is not None else None,
        "resumed_from": str(source) if source is not None else None,
        **job_record(),
    }


def _from_project(path: str | os.PathLike[str]) -> Path:
    return Path(os.environ.get("FDL_PROJECT_ROOT", "")) / path


def _iso(moment: datetime) -> str:
    return moment.astimezone().isoformat(timespec="seconds")
