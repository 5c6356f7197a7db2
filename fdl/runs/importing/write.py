"""Writing an imported run as a run directory, once: a second import updates the same one."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from bisect import bisect_left, bisect_right
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdl.base.errors import failing
from fdl.base.files import staging
from fdl.base.masking import KNOWN
from fdl.base.own_files import open_own, own, put_own, read_json
from fdl.runs.importing.foreign import EPOCH, STEP, Curve
from fdl.runs.metrics import FIRST, RESOURCES
from fdl.runs.run import CONFIG, ENVIRONMENT, METRICS, NOTES, RECORD
from fdl.runs.step_files import FOLDER, curve_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fdl.runs.importing.foreign import Foreign

_BY_EPOCH, _BY_STEP = "epoch/", "step/"
"""Begin the names of both kinds of metrics that flodl writes for TensorBoard and MLflow."""

_MOST_ROWS = 2000
_RESOURCES = "resources/"


class Sorted:
    """The curves of an imported run, told apart.

    Attributes:
        by_step: Metric -> its values by step.
        by_epoch: Metric -> its values by epoch, counted from 1; empty if no epochs were recorded.
        marks: Finished epochs by step; empty if they are not known.

    Args:
        curves: The curves.
        from_one: Whether a metric called ``epoch`` counts from 1; else it counts from 0.
    """

    def __init__(self, curves: Mapping[str, Curve], *, from_one: bool = False) -> None:
        self._shift = 0 if from_one else 1
        cleaned = {name: curve.cleaned() for name, curve in curves.items() if curve.steps}
        self.by_step: dict[str, Curve] = {}
        self.by_epoch: dict[str, Curve] = {}
        self.marks = Curve()
        if any(name.startswith(_BY_STEP) for name in cleaned):
            self._from_flodl(cleaned)
        elif EPOCH in cleaned:
            self._from_epoch_metric(cleaned)
        else:
            self.by_step = cleaned

    def _from_flodl(self, curves: Mapping[str, Curve]) -> None:
        for name, curve in curves.items():
            if name.startswith(_BY_STEP):
                self.by_step[name.removeprefix(_BY_STEP)] = curve
            elif not name.startswith(_RESOURCES):
                self.by_epoch[name.removeprefix(_BY_EPOCH)] = curve

    def _from_epoch_metric(self, curves: Mapping[str, Curve]) -> None:
        """A metric called ``epoch`` counts epochs by step: Lightning records it, from 0."""
        counter = curves[EPOCH]
        self.by_step = {name: curve for name, curve in curves.items() if name != EPOCH}
        at_end = _is_recorded_at_end(counter, self.by_step)
        for name, curve in self.by_step.items():
            last: dict[int, int] = {}
            for place, step in enumerate(curve.steps):
                at = bisect_left(counter.steps, step)
                if not at_end:
                    at = max(bisect_right(counter.steps, step) - 1, 0)
                epoch = counter.values[min(at, len(counter.values) - 1)]
                if math.isfinite(epoch):
                    last[int(epoch) + self._shift] = place
            places = sorted(last.items())
            self.by_epoch[name] = Curve(
                [epoch for epoch, _ in places],
                [curve.values[place] for _, place in places],
                [curve.times[place] for _, place in places],
            )
        ends = {int(value) + self._shift: step for step, value in _finite(counter)}
        for epoch, step in sorted(ends.items()):
            if not self.marks.steps or step > self.marks.steps[-1]:
                self.marks.add(step, float(epoch), math.nan)

    @property
    def epochs(self) -> int | None:
        """The last epoch; None if no epochs were recorded."""
        ends = [curve.steps[-1] for curve in self.by_epoch.values() if curve.steps]
        return max(ends, default=None)

    def table(self) -> str:
        """The text of ``metrics.csv``: a row for each epoch, or else for each step.

        Of many steps, 2,000 spread evenly have a row, and those in which a metric is lowest,
        highest or last. So the last and the best value are those of the whole curve.
        """
        by_epoch = bool(self.by_epoch)
        # A second column of this name would hide the first one, which numbers the rows.
        by_step = {name: curve for name, curve in self.by_step.items() if name != STEP}
        curves = self.by_epoch or by_step
        rows: dict[int, dict[str, float]] = {}
        for name, curve in curves.items():
            for place in range(len(curve.steps)) if by_epoch else _shown(curve):
                rows.setdefault(curve.steps[place], {})[name] = curve.values[place]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        ends = RESOURCES if by_epoch else ()
        writer.writerow([*(FIRST if by_epoch else (STEP,)), *curves, *ends])
        seconds = self._seconds() if by_epoch else {}
        for position, row in sorted(rows.items()):
            cells = [repr(row[name]) if name in row else "" for name in curves]
            took = [f"{seconds[position]:.3f}" if position in seconds else ""] if by_epoch else []
            writer.writerow([position, *took, *cells, *("" for _ in ends)])
        return text.getvalue()

    def _seconds(self) -> dict[int, float]:
        """The seconds of each epoch, from the times of its last values; without the first one."""
        ends: dict[int, float] = {}
        for curve in self.by_epoch.values():
            for epoch, time in zip(curve.steps, curve.times, strict=True):
                if math.isfinite(time):
                    ends[epoch] = max(ends.get(epoch, time), time)
        return {
            epoch: max(time - ends[epoch - 1], 0.0)
            for epoch, time in ends.items()
            if epoch - 1 in ends
        }


def _is_recorded_at_end(counter: Curve, curves: Mapping[str, Curve]) -> bool:
    """Whether a program records an epoch when it has ended, and not when it begins.

    Then the values of the first epoch stand before the first record, and few behind the last one.
    """
    steps = [step for curve in curves.values() for step in curve.steps]
    before = sum(step < counter.steps[0] for step in steps)
    return before > sum(step > counter.steps[-1] for step in steps)


def _shown(curve: Curve) -> Sequence[int]:
    """The places of the points that get a row."""
    count = len(curve.steps)
    if count <= _MOST_ROWS:
        return range(count)
    # Every curve takes the same places if it has as many points, so that they share the rows.
    width = -(-count // _MOST_ROWS)
    chosen = {*range(0, count, width), count - 1}
    known = [place for place, value in enumerate(curve.values) if not math.isnan(value)]
    if known:
        chosen |= {
            min(known, key=curve.values.__getitem__),
            max(known, key=curve.values.__getitem__),
        }
    return sorted(chosen)


def _finite(curve: Curve) -> list[tuple[int, float]]:
    pairs = zip(curve.steps, curve.values, strict=True)
    return [(step, value) for step, value in pairs if math.isfinite(value)]


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
    found = _sorted(run)
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
    return {
        **_content(found, _config(run), run.environment),
        RECORD: _json(KNOWN.texts(record)),
    }


def add_to(folder: Path, run: Foreign) -> dict[str, Any]:
    """Put the curves, settings, facts and notes of a run into a run directory that exists.

    Of two settings of one name, that with another value than the program's own gives way.

    Returns:
        Entries for its record.

    Raises:
        FdlError: A file cannot be written.
    """
    found = _sorted(run)
    config = read_json(folder / CONFIG) or {}
    for name, one in _config(run).items():
        known = config.get(name)
        # A program may have put a file of its own there, with plain values.
        if (known.get("value") if isinstance(known, dict) else known) != one["value"]:
            config[name] = one
    environment = run.environment | (read_json(folder / ENVIRONMENT) or {})
    notes = {} if (folder / NOTES).exists() else _notes(run)
    _update(folder, {**_content(found, config, environment), **notes})
    facts = {"format": run.format, "id": run.identity, "status": run.status or None}
    epochs = {} if found.epochs is None else {"epochs": found.epochs}
    return {**epochs, "tracked_by": facts}


def _sorted(run: Foreign) -> Sorted:
    # Lightning counts from 0, also if a resumed training begins with epoch 1.
    counter = run.curves.get(EPOCH)
    own = run.format in ("mlflow", "wandb")
    return Sorted(run.curves, from_one=own and counter is not None and min(counter.values) == 1)


def _config(run: Foreign) -> dict[str, Any]:
    return {name: {"value": value, "origin": run.origin} for name, value in run.config.items()}


def _content(
    found: Sorted, config: Mapping[str, Any], environment: Mapping[str, Any]
) -> dict[str, bytes]:
    known = KNOWN.data({CONFIG: dict(config), ENVIRONMENT: dict(environment)})
    return {
        CONFIG: _json(known[CONFIG]),
        ENVIRONMENT: _json(known[ENVIRONMENT]),
        METRICS: KNOWN.text(found.table()).encode(),
        **curve_files(found.by_step, found.marks),
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
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with staging(path.parent) as temporary:
            for name, data in content.items():
                put_own(temporary, temporary / name, data)
            temporary.rename(path)


def _update(path: Path, content: Mapping[str, bytes]) -> None:
    """Replace the files that differ, each as a whole; the record comes last."""
    with _writing(path):
        for name, data in content.items():
            file = path / name
            if not _holds(file, data):
                put_own(path, file, data)
        for file in Path(own(path, path / FOLDER)).glob("*.f64"):
            if f"{FOLDER}/{file.name}" not in content:
                file.unlink(missing_ok=True)


def _writing(path: Path) -> failing:
    hint = f"check the permissions of {path.parent}, or name another folder with --into"
    return failing(f"{path} cannot be written", hint)


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
