"""The folder of a run and its records: which run to resume, which one to join, what was started.

The folder is a new one, or the one that ``fdl`` has made for this run. A run records of its program
the command line, the source code, the packages, the launch and the batch job.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from collections import Counter
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from fdl.base import run_record
from fdl.base.code_record import code_changes, running_program
from fdl.base.files import replace_text, staging
from fdl.base.own_files import read_json
from fdl.base.masking import KNOWN, PLAN_VARIABLE, HandedDown, Mask
from fdl.base.run_record import CODE, RECORD, host, job_record, process_facts, started_ticks
from fdl.base.secrets import REDACTED, plain_name, redact_tokens
from flodl import log
from flodl.errors import RunDirectoryError
from flodl.ranks.launch.launcher import detect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from flodl.ranks.launch.launcher import Launched


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
            record = read_record(checkpoint.parent) or {}
            state, started = record["state"], datetime.fromisoformat(record["started"])
            origin = Path(record["resumed_from"] or "").parent.name
            written = checkpoint.stat().st_mtime_ns
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not the folder of a run, or a broken one: users can still name it
        if origin != checkpoint.parent.name:  # a sweep continues a run in its own folder
            continued.add(origin)
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
    return read_json(folder / RECORD)


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
            and read_json(folder / "config.json") == config
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


PACKAGES = "packages.txt"
_OWN = "fdl"
"""The origin of variables that ``fdl`` makes for itself."""
_PATIENCE = 10.0
"""Seconds that the end of a run waits for the files."""


def recorded_argv(
    argv: Sequence[str], config: Mapping[str, Any], environ: Mapping[str, str]
) -> list[str]:
    """Return a command line without its secrets.

    Args:
        argv: The program and its arguments.
        config: The configuration as it is recorded: secrets in it are hidden already.
        environ: The environment; ``fdl`` describes there the arguments that it has generated.
    """
    program, *typed = argv
    plan = HandedDown(environ)
    generated = Mask(plan.secrets)
    hidden = plan.marked | set(_hidden_names(config))
    shown = redact_tokens(typed)
    for place, token in enumerate(typed):
        option, equals, _ = token.partition("=")
        is_value = equals or (place and not token.startswith("--"))
        name = plain_name(option if equals else typed[place - 1]) if is_value else ""
        if name and name in plan.public:
            shown[place] = token
        elif name and name in hidden:
            shown[place] = f"{option}={REDACTED}" if equals else REDACTED
        else:
            shown[place] = KNOWN.text(generated.text(shown[place]))
    return [program, *shown]


def typed_words(environ: Mapping[str, str]) -> list[str] | None:
    """Return the command line that started this program, as it was typed; the first is a program.

    It is None if a launcher other than ``fdl`` started this program.
    """
    words = _typed_for_fdl(environ)
    if words is None and detect(environ) is None:
        interpreter, *rest = sys.orig_argv
        return [Path(interpreter).name, *rest]
    return words


def _typed_for_fdl(environ: Mapping[str, str]) -> list[str] | None:
    try:
        plan: Any = json.loads(environ.get(PLAN_VARIABLE, ""))
        if plan["kind"] != "entry":  # a script decides itself what its words mean
            return None
        argv, typed = plan["argv"], int(plan["typed"])
        chosen = ["--env", plan["env"]] if plan.get("env") else []
        words = [*chosen, *plan["command"], *plan.get("kept", []), *argv[len(argv) - typed :]]
        if unchecked := int(plan.get("unchecked", 0)):
            words.insert(len(words) - unchecked, "--")
        return ["fdl", *map(str, words)]
    except (ValueError, KeyError, TypeError):
        return None


def program_start(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how this program was started, without secrets, and the folders.

    Args:
        config: The configuration as it is recorded.
    """
    typed = typed_words(os.environ)
    return {
        "typed": typed and recorded_argv(typed, config, os.environ),
        "cwd": str(Path.cwd()),
        "project_root": os.environ.get("FDL_PROJECT_ROOT"),
    }


def recorded_variables(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the variables that a manifest or a flag of ``fdl`` gave this program, without secrets.

    Args:
        environ: The environment; the plan of ``fdl`` in it says where each variable is written.

    Returns:
        name -> ``{"value": …, "origin": "train/fdl.yml:4:10"}``. The origin is ``shell`` if the
        environment of ``fdl`` had the variable already.
    """
    found = {}
    try:
        for one in json.loads(environ.get(PLAN_VARIABLE, ""))["variables"]:
            name, origin, secret = str(one["name"]), str(one["origin"]), one["secret"]
            if origin == _OWN or name not in environ:
                continue
            # None: the manifest says that it is public.
            value = environ[name] if secret is None else KNOWN.text(environ[name])
            found[name] = {"value": REDACTED if secret else value, "origin": origin}
    except (ValueError, KeyError, TypeError):
        return {}
    return found


def installed_packages() -> list[str]:
    """Return ``name==version`` of each installed package, sorted by name."""
    found: dict[str, str] = {}
    for one in metadata.distributions():
        # Only the first lines: a parser of the whole text takes most of the time.
        text = one.read_text("METADATA") or one.read_text("PKG-INFO") or ""
        head = dict(line.split(": ", 1) for line in text[:400].splitlines()[:6] if ": " in line)
        name, version = head.get("Name", ""), head.get("Version", "")
        if name and version:
            found.setdefault(name.lower().replace("_", "-"), f"{name}=={version}")
    return [found[name] for name in sorted(found)]


@final
class ProgramRecord:
    """Writes ``code.diff`` and ``packages.txt`` on a thread, beside the training.

    Args:
        folder: The run directory.
        runs: Folder of all runs.
    """

    def __init__(self, folder: Path, runs: Path) -> None:
        self._folder, self._runs = folder, runs
        self._thread = threading.Thread(target=self._write, name="flodl-program", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the files are written, at most some seconds."""
        self._thread.join(_PATIENCE)

    def _write(self) -> None:
        try:
            program = running_program()
            changes = code_changes(program, self._runs.resolve()) if program else ""
            if changes:
                replace_text(self._folder / CODE, changes)
            lines = [f"{one}\n" for one in installed_packages()]
            replace_text(self._folder / PACKAGES, "".join(lines))
        except Exception as failure:  # the record of the code must not end the training
            log.debug(f"the record of the program is incomplete: {failure}")


def _hidden_names(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the settings whose values are hidden."""
    for name, value in config.items():
        if value == REDACTED or (isinstance(value, dict) and value.get("value") == REDACTED):
            yield plain_name(name)
        elif isinstance(value, dict):
            yield from _hidden_names(value)


_runs: Counter[str] = Counter()
"""Number of run directories that this process made, by launch: a program may make several."""

IDENTITY = ("launch", "launch_run")


def launch_record(launched: Launched) -> dict[str, Any]:
    """The entries of a record about its launch; a restart finds its run by them."""
    name = launched.run_id or _nameless(launched)
    _runs[name] += 1
    return {
        "launch": name,
        "launch_run": _runs[name],
        "rendezvous": f"{launched.address}:{launched.port} ({launched.restart})",
        "restarts": launched.restart,
    }


def _nameless(launched: Launched) -> str:
    """A name for a launch without one: the launcher's process on one host, else the address."""
    if launched.local_world_size == launched.world_size:
        launcher = os.getppid()
        if (began := started_ticks(launcher)) is not None:
            return f"{host()}:{launcher}:{began}"
    return f"{launched.address}:{launched.port}"


def earlier_run(
    folder: Path, launched: Launched | None, launch: Mapping[str, Any], config: Mapping[str, Any]
) -> Path | None:
    """Return the run that this start continues; None for a new run.

    It is the run of the same launch, or of the same job if SLURM has queued it again.

    Args:
        folder: The folder of all runs.
        launched: How the launcher started this process; None without a launcher.
        launch: The entries of the record about it.
        config: The configuration, which must be the same.
    """
    if launched is not None and (launched.restart > 0 or launched.run_id):
        wanted = {name: launch[name] for name in IDENTITY}
        found = run_of_launch(folder, wanted, restarted=launched.restart > 0, config=config)
        if found is not None:
            return found
    job = job_record()
    if job and int(os.environ.get("SLURM_RESTART_COUNT") or 0):
        return run_of_launch(folder, job, restarted=False, config=config)
    return None
