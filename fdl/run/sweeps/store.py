"""The directory of a sweep, and ``sweep.json`` in it: what it runs, and how far it is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdl.base import run_record
from fdl.base.errors import FdlError, UsageError, failing
from fdl.base.files import new_folder, subfolders
from fdl.base.own_files import inside, put_own, read_json
from fdl.plan.recorded import USUAL_FOLDER
from fdl.run.step import DONE, FAILED, STOPPED
from fdl.runs.find import folders, newest, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fdl.manifest.node import Node
    from fdl.manifest.select.project import Project
    from fdl.runs.run import Run

FILE = run_record.SWEEP
_LOCK = ".sweep.lock"
_DEPTH = 4
_EXAMPLE = "fdl COMMAND --each lr=1e-3,3e-3"

WAITING, RUNNING = "waiting", "running"
_SETTINGS: dict[str, tuple[type, ...]] = {
    "each": (dict,), "zip": (bool,), "search": (str,), "trials": (int,), "goal": (str,),
    "jobs": (int,), "gpus_each": (int,), "append": (bool,), "env": (str, type(None)),
}  # fmt: skip
"""What a sweep keeps beside its command and its runs, to be continued from."""

STATES = (DONE, FAILED, STOPPED, RUNNING, WAITING)
"""How a run of a sweep stands. One that is ``running`` without a process was interrupted."""


@dataclass
class Row:
    """One run of a sweep.

    Attributes:
        name: Its name, and that of its directory.
        varied: Key -> value.
        state: One of :data:`STATES`.
        code: Its exit code; None before its end.
        seconds: How long it took.
    """

    name: str
    varied: dict[str, str]
    state: str = WAITING
    code: int | None = None
    seconds: float = 0.0


class Sweep:
    """A sweep on disk.

    Attributes:
        path: Its directory.
        settings: What it runs: the command line, ``each`` and the flags.
        rows: Its runs.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], rows: Sequence[Row]) -> None:
        self.path = path
        self.settings = dict(settings)
        self.rows = list(rows)

    @classmethod
    def make(cls, folder: Path, name: str, settings: Mapping[str, Any], rows: list[Row]) -> Sweep:
        """A new directory in a folder: NAME, or the next free one of NAME-2, NAME-3 and so on.

        Raises:
            FdlError: It cannot be written.
        """
        hint = "make it writable; if the program has `--output`, it chooses another folder"
        with failing(f"{folder} cannot be written", hint=hint):
            folder.mkdir(parents=True, exist_ok=True)
            made = cls(Path(new_folder(folder, name)), settings, rows)
            made.save()
        return made

    @classmethod
    def read(cls, path: Path) -> Sweep | None:
        """The sweep of a directory; None if there is none."""
        content = read_json(path / FILE)
        try:
            if content is None:
                return None
            rows = [_row(one) for one in content.pop("runs")]
            command = content["command"]
            sound = isinstance(command, list) and all(isinstance(one, str) for one in command)
            return cls(path, content, rows) if sound else None
        except (KeyError, TypeError, ValueError):
            return None

    def require_settings(self) -> None:
        """Refuse a sweep whose file does not say how to continue it.

        Raises:
            FdlError: The message names what is wrong.
        """
        for key, kinds in _SETTINGS.items():
            if not isinstance(self.settings.get(key, ...), kinds):
                raise FdlError(
                    f"{shortened(self.path / FILE)} is damaged: `{key}` is missing or wrong",
                    hint="restore it from a copy, or begin the sweep again",
                )

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.path.name

    def directory(self, row: Row) -> Path:
        """The directory of a run, in which files are written and removed.

        Raises:
            FdlError: It is a link.
        """
        return Path(self._own(row.name))

    def _own(self, name: str) -> str:
        try:
            return inside(self.path, name)
        except OSError as problem:
            raise FdlError(
                f"the sweep {shortened(self.path)} cannot be run: {problem.filename}: "
                f"{problem.strerror}",
                hint=f"fdl sweep show {shortened(self.path)}",
            ) from None

    def save(self) -> None:
        """Replace ``sweep.json``."""
        content = {**self.settings, "runs": [vars(row) for row in self.rows]}
        text = json.dumps(content, indent=2) + "\n"
        put_own(self.path, self.path / FILE, text.encode(), 0o666)

    def runs(self) -> dict[str, Run]:
        """Name of a row -> its newest run directory, for those that have one."""
        return {row.name: run for row in self.rows if (run := newest(self.path / row.name))}

    def count(self, *states: str) -> int:
        """The number of runs in some states."""
        return sum(row.state in states for row in self.rows)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep a second fdl from running this sweep.

        Raises:
            UsageError: Another process runs it.
        """
        from filelock import FileLock, Timeout

        lock = FileLock(self._own(_LOCK), blocking=False)
        try:
            lock.acquire()
        except Timeout:
            raise UsageError(
                f"another process runs the sweep `{self.name}`",
                hint=f"fdl sweep show {self.name}",
            ) from None
        try:
            yield
        finally:
            lock.release()


def _row(one: Mapping[str, Any]) -> Row:
    """A run of ``sweep.json``.

    Raises:
        KeyError: It lacks a key.
        ValueError: A value has the wrong type, or its directory would lie outside the sweep.
    """
    row = Row(one["name"], dict(one["varied"]), one["state"], one["code"], one["seconds"])
    name_is_sound = isinstance(row.name, str) and Path(row.name).name == row.name
    code_is_sound = row.code is None or isinstance(row.code, int)
    if not (name_is_sound and code_is_sound and row.state in STATES):
        raise ValueError(row.name)
    row.seconds = float(row.seconds)
    return row


def blocks(project: Project) -> dict[str, Node]:
    """The blocks under ``sweeps:`` by name; a null counts as not given."""
    found = project.root.node.get("sweeps")
    return {name: one for name, one in (found.mapping if found else {}).items() if one.mapping}


def find(project: Project) -> list[Sweep]:
    """The sweeps of a project, newest first.

    Raises:
        ManifestError: The project's own manifest is broken.
    """
    places = dict.fromkeys([*folders(project), Path(project.directory, USUAL_FOLDER)])
    found = {
        os.path.realpath(sweep.path): sweep for place in places for sweep in _below(place, _DEPTH)
    }
    return sorted(found.values(), key=lambda one: str(one.settings.get("started")), reverse=True)


def _below(place: Path, depth: int) -> Iterator[Sweep]:
    sweep = Sweep.read(place)
    if sweep is not None:
        yield sweep
    elif depth:
        for name in subfolders(place):
            yield from _below(place / name, depth - 1)


def choose(word: str, project: Project) -> Sweep:
    """The sweep that a word means: ``last``, a name, its beginning, or a path.

    Raises:
        UsageError: It means none, or several.
    """
    if "/" in word or os.sep in word:
        sweep = Sweep.read(Path(word))
        if sweep is None:
            there = os.path.lexists(Path(word, FILE))
            why = f": {FILE} is damaged, or names a run outside of it" if there else ""
            raise UsageError(f"{word} is not a sweep{why}", hint="fdl sweep list")
        return sweep
    sweeps = find(project)
    if word == "last":
        fitting = sweeps[:1]
    else:
        exact = [one for one in sweeps if one.name == word]
        fitting = exact or [one for one in sweeps if one.name.startswith(word)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        shown = ", ".join(str(shortened(one.path)) for one in fitting)
        raise UsageError(f"`{word}` means {len(fitting)} sweeps: {shown}", hint="type its path")
    what = f"no sweep is called `{word}`" if sweeps else "there are no sweeps yet"
    raise UsageError(what, hint="`fdl sweep list` names them" if sweeps else _EXAMPLE)


def now() -> str:
    """The time, as the records of runs have it."""
    return datetime.now().astimezone().isoformat(timespec="microseconds")
