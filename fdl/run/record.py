"""The run directory of a start: made before the program begins, completed when it has ended.

Imported on the warm path of entries. What takes longer happens while the program runs.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH103, PTH105, PTH106, PTH108, PTH110, PTH118, PTH208
from __future__ import annotations

import _thread
import json
import os
import time
from contextlib import suppress

from fdl.base import output, run_record
from fdl.base.files import new_folder, subfolders
from fdl.base.masking import KNOWN, HandedDown
from fdl.base.own_files import put_own, read_json
from fdl.base.run_record import (
    CODE,
    CONFIG,
    DIRECTORY_VARIABLE,
    ENVIRONMENT,
    FOLDER_NAME,
    LOG,
    OUTPUT,
    RECORD,
)
from fdl.plan.redaction import redacted
from fdl.run.lines import Lines, Metrics
from fdl.run.program import script
from fdl.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fdl.plan.value import Plan, Recording
    from fdl.run.tracker import Tracker

_PATIENCE_S = 12.0
"""How long the end of a run waits for the changes of the code; git itself has less time."""

_CAN_GO_ON = ("running", "interrupted", "failed")


def begin(plan: Plan, recording: Recording) -> RunRecord | None:
    """Make the folder of a start and name it to the program.

    A folder that cannot be written costs the record, not the run.
    """
    shown = redacted(plan)
    KNOWN.add(HandedDown(plan.env).secrets)
    try:
        folder = _folder(plan, recording)
        made = RunRecord(plan, recording, shown, folder)
    except OSError as problem:
        output.warning(
            f"this run is not recorded: {problem.filename or recording.runs}: {problem.strerror}",
            "make the folder writable, or set `output: {record: false}`",
        )
        return None
    _name_folder(plan, recording, folder)
    return made


class RunRecord:
    """The record of one start.

    Args:
        plan: What is started.
        recording: What is recorded of it.
        shown: The plan without secrets.
        folder: Its folder, which exists.

    Attributes:
        folder: Its folder.
        chosen: Whether somebody else has chosen the folder, so that it always stays.

    Raises:
        OSError: A file cannot be written.
    """

    def __init__(self, plan: Plan, recording: Recording, shown: Plan, folder: str) -> None:
        self.folder = folder
        self.chosen = bool(recording.folder)
        self._metrics = recording.metrics
        self._root, self._inside, self._runs = plan.root, recording.inside, recording.runs
        file, _, _ = plan.origin.partition(":")
        program = os.path.join(plan.cwd, script(plan)) if script(plan) else file
        self._program = os.path.realpath(os.path.join(plan.root, program))
        self._code: _thread.LockType | None = None
        self._tracker: Tracker | None = None
        if recording.track:
            from fdl.run.tracker import Tracker

            self._tracker = Tracker(recording, folder)
        self._began = time.time()
        _write(folder, CONFIG, recording.settings)
        _write(folder, ENVIRONMENT, _environment(plan))
        _write(folder, RECORD, self._first(plan, shown))
        run_record.offer(folder)

    def _first(self, plan: Plan, shown: Plan) -> dict[str, Any]:
        return {
            "state": "running",
            "started": _iso(self._began),
            "finished": None,
            "error": None,
            "command": plan.command,
            "argv": shown.launch,
            "cwd": plan.cwd,
            "project_root": plan.root,
            "variables": {
                one.name: {"value": one.value, "origin": one.origin}
                for one in shown.variables
                if one.origin != "fdl"
            },
            **({"name": name} if (name := plan.env.get("FDL_RUN_NAME")) else {}),
            **run_record.job_record(),
            **run_record.process_facts(),
        }

    def lines(self) -> Callable[[], Lines]:
        """What makes a reader of lines for each stream of the program."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        try:
            log = os.open(os.path.join(self.folder, LOG), flags, 0o666)
        except OSError as problem:
            output.warning(f"{LOG} cannot be written: {problem.strerror}")
            log = -1
        metrics = Metrics(self.folder, self._metrics) if self._metrics else None
        return lambda: Lines(log, metrics)

    def follow(self) -> None:
        """Begin to record what happens beside the program: its tracker, and changed code."""
        if self._tracker is not None:
            self._tracker.start()
        if not run_record.in_repository(self._program):
            return
        self._code = _thread.allocate_lock()
        self._code.acquire()
        _thread.start_new_thread(self._write_code, (self._code,))

    def _write_code(self, done: _thread.LockType) -> None:
        try:
            from pathlib import Path

            from fdl.base.code_record import code_changes

            changes = code_changes(Path(self._program), Path(self._runs))
            if changes:
                folder = self.folder
                put_own(folder, os.path.join(folder, CODE), changes.encode("utf-8", "replace"))
        except OSError as problem:
            output.warning(f"{CODE} cannot be written: {problem.strerror}")
        finally:
            done.release()

    def finish(self, code: int, asked: int) -> None:
        """Record how the program ended.

        Args:
            code: Its exit code.
            asked: The signal that asked fdl to end meanwhile; 0 for none.
        """
        state = "interrupted" if asked else "failed" if code else "complete"
        self._finish(state, code, f"exit code {code}" if code else None)

    def fail(self, code: int, error: str) -> None:
        """Record that the program was not started; a folder of fdl's own choice goes."""
        if self.chosen:
            self._finish("failed", code, error)
            return
        with suppress(OSError):
            for name in os.listdir(self.folder):
                os.unlink(os.path.join(self.folder, name))
            os.rmdir(self.folder)

    def _finish(self, state: str, code: int, error: str | None) -> None:
        facts = {"exit_code": code, "seconds": round(time.time() - self._began, 3)}
        ended = {"state": state, "finished": _iso(time.time()), "error": error}
        if self._code is not None:
            self._code.acquire(timeout=_PATIENCE_S)
        try:
            # From now on no training takes the folder over.
            run_record.claim(self.folder)
            target = self._elsewhere()
            if self._tracker is not None:
                facts |= self._tracker.finish(here=not target)
            if target:
                self._move_to(target)
                self.folder = target
            found = _read(self.folder)
            if found is None:
                return
            if self.chosen and run_record.holds_runs(self.folder):
                # The program has runs of its own there, which another machine has made.
                for name in (RECORD, CONFIG):
                    os.unlink(os.path.join(self.folder, name))
                return
            # A training knows better how it ended.
            is_open = found.get("state") == "running"
            _write(self.folder, RECORD, found | facts | (ended if is_open else {}))
        except OSError as problem:
            output.warning(f"the end of {self.folder} is not recorded: {problem.strerror}")

    def _elsewhere(self) -> str:
        """The run directory that the program has made elsewhere; empty if there is none."""
        target = run_record.moved_to(self.folder)
        if not target:
            return ""
        if self._inside and os.path.commonpath((target, self._inside)) == self._inside:
            target = os.path.join(self._root, os.path.relpath(target, self._inside))
        if _read(target) is not None:
            return target
        run_record.come_back(self.folder)
        return ""

    def _move_to(self, target: str) -> None:
        """Put what fdl knows into the program's own run directory, and remove the other one."""
        known = _read(self.folder, run_record.MOVED_RECORD) or {}
        _write(target, RECORD, known | (_read(target) or {}))
        run_record.clear_moved(self.folder)
        if os.path.exists(os.path.join(self.folder, LOG)):
            with suppress(OSError):
                os.replace(os.path.join(self.folder, LOG), os.path.join(target, OUTPUT))
        for name in (CONFIG, ENVIRONMENT, LOG, CODE):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))
        with suppress(OSError):
            # It stays if the program has put files of its own into it.
            os.rmdir(self.folder)


def _write(folder: str, name: str, content: object) -> None:
    text = json.dumps(KNOWN.data(content), indent=2) + "\n"
    put_own(folder, os.path.join(folder, name), text.encode(), 0o666)


def _read(folder: str, name: str = RECORD) -> dict[str, Any] | None:
    return read_json(os.path.join(folder, name))


def _folder(plan: Plan, recording: Recording) -> str:
    """The folder of a start, which exists from now on."""
    if recording.folder:
        os.makedirs(recording.folder, exist_ok=True)
        return recording.folder
    again = _queued_again(plan, recording)
    if again:
        return again
    os.makedirs(recording.runs, exist_ok=True)
    return new_folder(recording.runs, time.strftime(FOLDER_NAME))


def _queued_again(plan: Plan, recording: Recording) -> str:
    """The folder of the same command and job, if SLURM has queued the job again; or empty."""
    job = run_record.job_record()
    if not job or not int(os.environ.get("SLURM_RESTART_COUNT") or 0):
        return ""
    wanted = {**job, "command": plan.command}
    for name in sorted(subfolders(recording.runs), reverse=True):
        folder = os.path.join(recording.runs, name)
        found = _read(folder) or {}
        same = all(found.get(key) == value for key, value in wanted.items())
        if same and found.get("state") in _CAN_GO_ON:
            return folder
    return ""


def _name_folder(plan: Plan, recording: Recording, folder: str) -> None:
    """Name the folder to the program, as the program sees it, and to the tracker that it uses."""
    if plan.service:
        inside = os.path.relpath(folder, plan.root)
        if inside.startswith(os.pardir):
            return  # it is not mounted
        folder = f"{recording.inside}/{inside.replace(os.sep, '/')}"
    named = {DIRECTORY_VARIABLE: folder}
    if recording.track:
        from fdl.run import tracker

        named |= tracker.variables(recording.track, folder)
    if plan.service:
        # Docker takes the values from its own environment.
        place = plan.launch.index("run") + 1
        words = [word for name in named for word in ("-e", name)]
        plan.launch = [*plan.launch[:place], *words, *plan.launch[place:]]
    plan.env.update(named)


def _environment(plan: Plan) -> dict[str, object]:
    facts: dict[str, object] = {"fdl": __version__, "cpu_count": os.cpu_count()}
    if hasattr(os, "uname"):
        system = os.uname()
        facts["platform"] = f"{system.sysname}-{system.release}-{system.machine}"
        facts["memory"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    facts["git_commit"] = run_record.git_commit(plan.cwd)
    facts["lock"] = run_record.lock_file(plan.cwd)
    return facts


def _iso(moment: float) -> str:
    local = time.localtime(moment)
    zone = time.strftime("%z", local)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', local)}{zone[:3]}:{zone[3:]}"
