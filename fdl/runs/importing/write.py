"""Writing an imported run as a run directory, once: a second import updates the same one."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdl.base.errors import FdlError
from fdl.base.masking import KNOWN
from fdl.base.own_files import open_own, own, put_own
from fdl.runs.importing import step_curves
from fdl.runs.importing.epochs import Sorted
from fdl.runs.json_file import read_json
from fdl.runs.notes import NOTES
from fdl.runs.run import CONFIG, ENVIRONMENT, METRICS, RECORD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdl.runs.importing.foreign import Foreign

NEW, UPDATED, UNCHANGED = "new", "updated", "unchanged"

_UNSAFE = re.compile(r"[^\w.+=@-]+")
_LONGEST_NAME = 80
_ORIGIN = "imported_from"


class Target:
    """The folder that receives imported runs.

    Args:
        folder: The folder; it need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[tuple[str, str], Path] = {}
        self._names: set[str] = set()
        for record in sorted(folder.glob(f"*/{RECORD}")):
            origin = (read_json(record) or {}).get(_ORIGIN)
            if isinstance(origin, dict):
                key = str(origin.get("format")), str(origin.get("id"))
                self._known.setdefault(key, record.parent)
        if folder.is_dir():
            self._names = {entry.name for entry in folder.iterdir()}

    def put(self, run: Foreign, *, dry_run: bool = False) -> tuple[Path, str]:
        """Write one run, or find that it is there already.

        Args:
            run: The run.
            dry_run: Write nothing.

        Returns:
            Its run directory, and whether it is ``new``, ``updated`` or ``unchanged``.

        Raises:
            FdlError: The directory cannot be written.
        """
        key = run.format, run.identity
        path = self._known.get(key)
        content = _files(run)
        if path is None:
            path = self._folder / self._free_name(run.name)
            self._known[key] = path
            if not dry_run:
                _write_new(path, {**content, **_notes(run)})
            return path, NEW
        if _is_same(path, content):
            return path, UNCHANGED
        if not dry_run:
            _update(path, content)
        return path, UPDATED

    def _free_name(self, name: str) -> str:
        # A name that begins with a dot would be passed over.
        base = _UNSAFE.sub("-", name).strip("-.")[:_LONGEST_NAME] or "run"
        chosen, number = base, 1
        while chosen in self._names:
            number += 1
            chosen = f"{base}-{number}"
        self._names.add(chosen)
        return chosen


def _files(run: Foreign) -> dict[str, bytes]:
    """Name -> content of the files of a run directory; the record comes last."""
    found = Sorted(run.curves)
    origin = {
        "format": run.format,
        "path": str(run.path),
        "id": run.identity,
        "status": run.status or None,
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    record = {
        "state": run.state,
        "started": run.started.isoformat(timespec="seconds"),
        "finished": run.finished.isoformat(timespec="seconds") if run.finished else None,
        "epochs": found.epochs,
        "error": None,
        "resumed_from": None,
        _ORIGIN: origin,
    }
    config = {name: {"value": value, "origin": run.origin} for name, value in run.config.items()}
    known = KNOWN.data({CONFIG: config, ENVIRONMENT: dict(run.environment)})
    return {
        CONFIG: _json(known[CONFIG]),
        ENVIRONMENT: _json(known[ENVIRONMENT]),
        METRICS: KNOWN.text(found.table()).encode(),
        **step_curves.files(found.by_step, found.marks),
        RECORD: _json(KNOWN.texts(record)),
    }


def _notes(run: Foreign) -> dict[str, bytes]:
    """Tags and note of the other program, which only a new run directory gets."""
    if not run.tags and not run.note:
        return {}
    return {NOTES: _json(KNOWN.texts({"tags": run.tags, "note": run.note}))}


def _is_same(path: Path, content: Mapping[str, bytes]) -> bool:
    """Whether a run directory has this content already; the time of its import aside."""
    for name, data in content.items():
        if name == RECORD:
            if _timeless(read_json(path / name)) != _timeless(json.loads(data)):
                return False
            continue
        if not _holds(path / name, data):
            return False
    return True


def _holds(file: Path, data: bytes) -> bool:
    try:
        with open_own(file) as stream:
            return stream.read() == data
    except OSError:
        return False


def _timeless(record: dict[str, Any] | None) -> dict[str, Any] | None:
    origin = (record or {}).get(_ORIGIN)
    if record is None or not isinstance(origin, dict):
        return record
    return {**record, _ORIGIN: {**origin, "time": None}}


def _write_new(path: Path, content: Mapping[str, bytes]) -> None:
    """Make a run directory under another name first, so that it is never seen incomplete."""
    # Names that begin with a dot are passed over.
    temporary = path.with_name(f".new-{os.getpid()}-{path.name}")
    try:
        temporary.mkdir(parents=True)
        for name, data in content.items():
            put_own(temporary, temporary / name, data)
        temporary.rename(path)
    except OSError as problem:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _refused(path, problem) from None


def _update(path: Path, content: Mapping[str, bytes]) -> None:
    """Replace the files that differ, each as a whole; the record comes last."""
    try:
        for name, data in content.items():
            file = path / name
            if not _holds(file, data):
                put_own(path, file, data)
        for file in Path(own(path, path / step_curves.FOLDER)).glob("*.f64"):
            if f"{step_curves.FOLDER}/{file.name}" not in content:
                file.unlink(missing_ok=True)
    except OSError as problem:
        raise _refused(path, problem) from None


def _refused(path: Path, problem: OSError) -> FdlError:
    return FdlError(
        f"{path} cannot be written: {problem.strerror}",
        hint=f"check the permissions of {path.parent}, or name another folder with --into",
    )


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(_plain(content), indent=2, ensure_ascii=False) + "\n").encode()


def _plain(value: Any) -> Any:
    """A value as JSON data: numbers that are not finite are text, as are objects."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)
