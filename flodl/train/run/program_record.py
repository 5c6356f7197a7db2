"""What a run records about its program: command line, source code, packages, launch, batch job."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from fdl.base.code_record import code_changes, running_program
from fdl.base.files import replace_text
from fdl.base.masking import KNOWN, PLAN_VARIABLE, HandedDown, Mask
from fdl.base.run_record import CODE, host, job_record, started_ticks
from fdl.base.secrets import REDACTED, plain_name, redact_tokens
from flodl import log
from flodl.ranks.launch.launcher import detect
from flodl.train.run.run_records import run_of_launch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from flodl.ranks.launch.launcher import Launched


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
