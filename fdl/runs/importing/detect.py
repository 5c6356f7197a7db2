"""The runs of other programs below a path."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fdl.base.errors import UsageError
from fdl.runs.importing import lightning, mlflow, tensorboard
from fdl.runs.importing.foreign import Foreign, UnreadableRunError
from fdl.runs.run import read as is_run_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_DEPTH = 8
_SETTINGS_FOLDER = re.compile(r"\d{9,}\.\d+")
_DATABASES = (".db", ".sqlite", ".sqlite3")
_KNOWN = "TensorBoard event folders, MLflow stores and Lightning CSV logs"


def runs(paths: Iterable[Path]) -> Iterator[Foreign | UnreadableRunError]:
    """The runs below some paths, one after the other; an error in place of one that is damaged.

    Raises:
        UsageError: A path does not exist, or holds no run of a known format.
    """
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist", hint=f"name {_KNOWN}")
        found = False
        for one in _below(path.resolve()):
            found = True
            yield one
        if not found:
            raise UsageError(f"{path} holds no run that can be imported", hint=f"name {_KNOWN}")


def _below(path: Path) -> Iterator[Foreign | UnreadableRunError]:
    if path.is_file():
        if tensorboard.EVENTS in path.name:
            folder = path.parent
            yield from _one(partial(tensorboard.read, folder, [path], _name(folder, folder)))
        elif mlflow.is_database(path):
            yield from _of_database(path)
        return
    for place, folders, names in os.walk(path):
        folder = Path(place)
        is_deep = len(folder.relative_to(path).parts) >= _DEPTH
        # What fdl lists already is not imported, nor anything inside it.
        if is_deep or is_run_directory(folder) is not None:
            folders.clear()
            names.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        events = [folder / name for name in names if tensorboard.EVENTS in name]
        if events:
            # PyTorch writes the settings of a run into a folder of its own, named by the time.
            parts = [name for name in folders if _SETTINGS_FOLDER.fullmatch(name)]
            events += [file for name in parts for file in _events_in(folder / name)]
            folders[:] = [name for name in folders if name not in parts]
        if mlflow.is_run_folder(folder):
            folders.clear()
            yield from _one(partial(mlflow.read_folder, folder))
        elif lightning.METRICS in names and lightning.is_log(folder):
            yield from _one(partial(lightning.read, folder, _name(folder, path)))
        elif events:
            yield from _one(partial(tensorboard.read, folder, events, _name(folder, path)))
        for name in sorted(names):
            if name.endswith(_DATABASES) and mlflow.is_database(folder / name):
                yield from _of_database(folder / name)


def _events_in(folder: Path) -> list[Path]:
    return [file for file in folder.iterdir() if tensorboard.EVENTS in file.name]


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


def _of_database(file: Path) -> Iterator[Foreign | UnreadableRunError]:
    try:
        yield from mlflow.read_database(file)
    except UnreadableRunError as problem:
        yield problem


def _name(folder: Path, top: Path) -> str:
    """The path of a run below the folder that was named, with that folder's own name."""
    return folder.relative_to(top.parent).as_posix()
