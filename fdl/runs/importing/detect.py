"""Find the runs of other tools below some paths, and read stores of MLflow."""

from __future__ import annotations

import math
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdl.base.errors import UsageError
from fdl.runs.importing import foreign, wandb
from fdl.runs.importing.foreign import (
    Curve,
    Foreign,
    UnreadableRunError,
    moment,
    read_yaml,
    value_of,
)
from fdl.runs.run import read as is_run_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

META = "meta.yaml"

_STATES = {"FINISHED": "complete", "FAILED": "failed", "KILLED": "interrupted"}
_NUMBERS = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
_DELETED = "deleted"
_NOTE = "mlflow.note.content"
_FACTS = {
    "mlflow.user": "user",
    "mlflow.source.name": "source",
    "mlflow.source.git.commit": "git_commit",
}
# SQLite cannot hold an infinity; MLflow writes the largest double.
_INFINITE = 1.7976931348623157e308
_TABLES = {"runs", "metrics", "params", "tags", "experiments"}
_HEAD = b"SQLite format 3\0"


def is_run_folder(folder: Path) -> bool:
    """Whether a folder of a file store holds a run."""
    return (folder / META).is_file() and (folder / "metrics").is_dir()


def read_folder(folder: Path) -> Foreign | None:
    """The run of a folder of a file store; None if it was deleted there, or is a logged model.

    MLflow 3 gives a model that a run logs a folder of the same form.

    Raises:
        UnreadableRunError: A file of the run cannot be read.
    """
    meta = read_yaml(folder / META)
    if meta.get("lifecycle_stage") == _DELETED or "model_id" in meta:
        return None
    identity = str(meta.get("run_id") or meta.get("run_uuid") or folder.name)
    status = meta.get("status")
    made = _made(
        folder,
        identity,
        str(meta.get("run_name") or ""),
        _NUMBERS.get(status, "") if isinstance(status, int) else str(status or ""),
        meta.get("start_time"),
        meta.get("end_time"),
    )
    params = {name: file.read_text("utf-8", "replace") for name, file in _files(folder / "params")}
    tags = {name: file.read_text("utf-8", "replace") for name, file in _files(folder / "tags")}
    _describe(made, params, tags)
    for name, file in _files(folder / "metrics"):
        curve = Curve()
        for place, line in enumerate(file.read_text("utf-8", "replace").splitlines(), 1):
            words = line.split()
            try:
                time, value, step = int(words[0]), float(words[1]), int([*words, "0"][2])
            except (ValueError, IndexError):
                made.warnings.append(f"{file}:{place} is not a value; it is left out")
                continue
            curve.add(step, value, time / 1000)
        if curve.steps:
            made.curves[name] = curve.numbered()
    return made


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Name and file of each entry; a name with a slash is a path of folders."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            file = Path(place, name)
            yield file.relative_to(folder).as_posix(), file


def is_database(file: Path) -> bool:
    """Whether a file is a SQLite database with the tables of MLflow."""
    try:
        with file.open("rb") as stream:
            if stream.read(len(_HEAD)) != _HEAD:
                return False
        with closing(_opened(file)) as database:
            rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            return {str(name) for (name,) in rows} >= _TABLES
    except (OSError, sqlite3.Error):
        return False


def read_database(file: Path) -> Iterator[Foreign]:
    """The runs of a database that were not deleted there.

    Raises:
        UnreadableRunError: The database cannot be read.
    """
    try:
        with closing(_opened(file)) as database:
            runs = database.execute(
                "SELECT run_uuid, name, status, start_time, end_time FROM runs "
                "WHERE lifecycle_stage != ? ORDER BY start_time",
                (_DELETED,),
            ).fetchall()
            for identity, name, status, start, end in runs:
                made = _made(file, str(identity), str(name or ""), str(status), start, end)
                _describe(made, *(_pairs(database, what, identity) for what in ("params", "tags")))
                rows = database.execute(
                    "SELECT key, step, value, is_nan, timestamp FROM metrics "
                    "WHERE run_uuid = ? ORDER BY timestamp, step",
                    (identity,),
                )
                for key, step, value, is_nan, time in rows:
                    number = math.nan if is_nan else _finite(float(value))
                    made.curves.setdefault(str(key), Curve()).add(int(step), number, time / 1000)
                made.curves = {name: curve.numbered() for name, curve in made.curves.items()}
                yield made
    except (sqlite3.Error, TypeError, ValueError) as problem:
        raise UnreadableRunError(f"{file} cannot be read as a store of MLflow: {problem}") from None


def _opened(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)


def _pairs(database: sqlite3.Connection, table: str, identity: str) -> dict[str, str]:
    query = {
        "params": "SELECT key, value FROM params WHERE run_uuid = ?",
        "tags": "SELECT key, value FROM tags WHERE run_uuid = ?",
    }[table]
    return {str(key): str(value) for key, value in database.execute(query, (identity,))}


def _finite(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) >= _INFINITE else value


def _made(path: Path, identity: str, name: str, status: str, start: Any, end: Any) -> Foreign:
    """A run without its values; times are in milliseconds.

    A run that its store says is running may be running or killed. It counts as interrupted.
    """
    began = float(start) / 1000 if isinstance(start, int | float) else 0.0
    made = Foreign("mlflow", path, name or identity, identity, moment(began))
    made.state = _STATES.get(status, "interrupted")
    made.status = status
    if isinstance(end, int | float) and end:
        made.finished = moment(end / 1000)
    return made


def _describe(made: Foreign, params: dict[str, str], tags: dict[str, str]) -> None:
    made.config = {name: value_of(text) for name, text in params.items()}
    made.origin = "parameter of MLflow"
    made.note = tags.get(_NOTE, "")
    made.environment = {name: tags[key] for key, name in _FACTS.items() if tags.get(key)} | {
        f"tag.{name}": text for name, text in tags.items() if not name.startswith("mlflow.")
    }
    if not made.name or made.name == made.identity:
        made.name = tags.get("mlflow.runName") or made.identity


_DEPTH = 8
_SETTINGS_FOLDER = re.compile(r"\d{9,}\.\d+")
_DATABASES = (".db", ".sqlite", ".sqlite3")
_KNOWN = "TensorBoard event folders, MLflow stores, W&B run folders and Lightning CSV logs"


def runs(paths: Iterable[Path]) -> Iterator[Foreign | UnreadableRunError]:
    """The runs below some paths, one after the other; an error in place of one that is damaged.

    Raises:
        UsageError: A path does not exist, or holds no run of a known format.
    """
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist", hint=f"name {_KNOWN}")
        found = False
        for one in below(path.resolve()):
            found = True
            yield one
        if not found:
            raise UsageError(f"{path} holds no run that can be imported", hint=f"name {_KNOWN}")


def below(path: Path) -> Iterator[Foreign | UnreadableRunError]:
    """The runs below one path, which may have none."""
    if path.is_file():
        if foreign.EVENTS in path.name:
            folder = path.parent
            yield from _one(
                partial(foreign.read_tensorboard, folder, [path], _name(folder, folder))
            )
        else:
            yield from _of_file(path)
        return
    for place, folders, names in os.walk(path):
        folder = Path(place)
        is_deep = len(folder.relative_to(path).parts) >= _DEPTH
        # What fdl lists already is not imported, nor anything inside it.
        if is_deep or is_run_directory(folder) is not None:
            folders.clear()
            names.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        events = [folder / name for name in names if foreign.EVENTS in name]
        if events:
            # PyTorch writes the settings of a run into a folder of its own, named by the time.
            parts = [name for name in folders if _SETTINGS_FOLDER.fullmatch(name)]
            events += [file for name in parts for file in _events_in(folder / name)]
            folders[:] = [name for name in folders if name not in parts]
        if is_run_folder(folder):
            folders.clear()
            yield from _one(partial(read_folder, folder))
        elif foreign.METRICS in names and foreign.is_log(folder):
            yield from _one(partial(foreign.read_lightning, folder, _name(folder, path)))
        elif events:
            yield from _one(partial(foreign.read_tensorboard, folder, events, _name(folder, path)))
        for name in sorted(names):
            if name.endswith((*_DATABASES, wandb.LOGS)):
                yield from _of_file(folder / name)


def _events_in(folder: Path) -> list[Path]:
    return [file for file in folder.iterdir() if foreign.EVENTS in file.name]


def _one(read: Callable[[], Foreign | None]) -> Iterator[Foreign | UnreadableRunError]:
    try:
        made = read()
    except UnreadableRunError as problem:
        yield problem
        return
    except OSError as problem:
        yield UnreadableRunError(f"{problem.filename} cannot be read: {problem.strerror}")
        return
    if made is not None:
        yield made


def _of_file(file: Path) -> Iterator[Foreign | UnreadableRunError]:
    if file.name.endswith(wandb.LOGS) and wandb.is_log(file):
        yield from _one(partial(wandb.read_log, file))
    elif is_database(file):
        try:
            yield from read_database(file)
        except UnreadableRunError as problem:
            yield problem


def _name(folder: Path, top: Path) -> str:
    """The path of a run below the folder that was named, with that folder's own name."""
    return folder.relative_to(top.parent).as_posix()
