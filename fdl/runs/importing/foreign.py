"""Runs of other tools as values: CSV logs of Lightning, event files of TensorBoard."""

from __future__ import annotations

import csv
import math
import re
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import yaml

from fdl.base import plain_yaml
from fdl.base.errors import FdlError
from fdl.runs.metrics import as_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class UnreadableRunError(FdlError):
    """A run that cannot be imported; other runs can."""


@dataclass(slots=True)
class Curve:
    """One metric: parallel lists in the order of recording.

    Attributes:
        steps: The step of each value, as the other program counts them.
        values: The values; they may be nan or infinite.
        times: Unix time in seconds of each value; nan if it is unknown.
    """

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def add(self, step: int, value: float, time: float) -> None:
        """Append one value."""
        self.steps.append(step)
        self.values.append(value)
        self.times.append(time)

    def numbered(self) -> Curve:
        """The same with values numbered from 0 if each stands at step 0, as without a step."""
        if any(self.steps) or len(self.steps) <= 1:
            return self
        return Curve(list(range(len(self.steps))), self.values, self.times)

    def cleaned(self) -> Curve:
        """The same with rising steps. Of several values of a step the last one counts."""
        steps = self.steps
        if all(a < b for a, b in pairwise(steps)):
            return self
        last = {step: place for place, step in enumerate(steps)}
        places = [last[step] for step in sorted(last)]
        return Curve(
            [steps[place] for place in places],
            [self.values[place] for place in places],
            [self.times[place] for place in places],
        )


@dataclass(slots=True)
class Foreign:
    """A run that another program recorded.

    Attributes:
        format: ``tensorboard``, ``mlflow``, ``wandb`` or ``lightning``.
        path: The folder or database that holds it.
        name: What it is called there.
        identity: What tells it from every other run of this format; stays if files are added.
        state: A state of :data:`fdl.runs.run.STATES`.
        started: When it began.
        finished: When it ended, if that is known.
        status: How the other program calls its state; empty if it records none.
        config: Setting -> value.
        origin: Where the settings are recorded.
        environment: Facts about machine and code.
        curves: Metric -> its values.
        tags: Tags, for the notes of a new run directory.
        note: A note, for the same.
        warnings: What could not be read.
    """

    format: str
    path: Path
    name: str
    identity: str
    started: datetime
    state: str = "complete"
    finished: datetime | None = None
    status: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    origin: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    note: str = ""
    warnings: list[str] = field(default_factory=list)


def moment(seconds: float) -> datetime:
    """A Unix time in the local zone; the beginning of 1970 if it is out of range."""
    try:
        return datetime.fromtimestamp(seconds, UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC).astimezone()


_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None}
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")


def value_of(text: str) -> object:
    """A parameter that was recorded as text: a number or truth value if it spells one."""
    if text in _WORDS:
        return _WORDS[text]
    if not _NUMBER.fullmatch(text):
        return text
    try:
        return float(text) if set(text) & set(".eE") else int(text)
    except ValueError:  # Python reads no number of thousands of digits
        return text


def read_yaml(file: Path) -> dict[str, Any]:
    """A mapping from a YAML file; Python objects in it become plain values.

    Raises:
        UnreadableRunError: The file cannot be read, or is not a mapping.
    """
    try:
        content = plain_yaml.load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as problem:
        raise UnreadableRunError(f"{file} cannot be read: {_first_line(problem)}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UnreadableRunError(f"{file} is not a mapping")
    return {str(key): value for key, value in content.items()}


def _first_line(problem: Exception) -> str:
    return (str(problem) or type(problem).__name__).partition("\n")[0]


METRICS = "metrics.csv"
HPARAMS_FILE = "hparams.yaml"
EPOCH, STEP = "epoch", "step"


def is_log(folder: Path) -> bool:
    """Whether a folder holds the CSV log of a version."""
    try:
        with (folder / METRICS).open(encoding="utf-8", errors="replace", newline="") as stream:
            heading = next(csv.reader(stream), [])
    except (OSError, csv.Error):
        return False
    return STEP in heading and (EPOCH in heading or (folder / HPARAMS_FILE).is_file())


def read_lightning(folder: Path, name: str) -> Foreign:
    """The run that a CSV log records.

    The log has no times and no end: the times of its files stand for them, and the run counts as
    complete.

    Raises:
        UnreadableRunError: A file cannot be read.
    """
    file = folder / METRICS
    try:
        changed = file.stat().st_mtime
        with file.open(encoding="utf-8", errors="replace", newline="") as stream:
            csv.field_size_limit(sys.maxsize)
            rows = list(csv.DictReader(stream))
    except (OSError, csv.Error) as problem:
        raise UnreadableRunError(f"{file} cannot be read: {problem}") from None
    beside = folder / HPARAMS_FILE
    has_settings = beside.is_file()
    began = min(beside.stat().st_mtime, changed) if has_settings else changed
    made = Foreign("lightning", folder, name, str(folder), moment(began))
    made.finished = moment(changed)
    if has_settings:
        made.config, made.origin = read_yaml(beside), str(beside)
    step = 0
    for row in rows:
        step = _whole(row.get(STEP), step)
        for column, cell in row.items():
            if column and column != STEP and isinstance(cell, str) and cell:
                value = as_number(cell)
                if value is not None:
                    made.curves.setdefault(column, Curve()).add(step, value, math.nan)
    return made


def _whole(cell: str | None, before: int) -> int:
    value = as_number(cell or "")
    return int(value) if value is not None and math.isfinite(value) else before


EVENTS = ".tfevents."

_SCALARS = "scalars"
_SESSION = "_hparams_/session_start_info"
_END = "_hparams_/session_end_info"
_ENDINGS = {1: "complete", 2: "failed"}
"""Status in the HParams plugin -> state of a run."""
_AROUND = 16
"""The bytes of a record beside its data: length and two checksums."""


def read_tensorboard(folder: Path, files: Sequence[Path], name: str) -> Foreign:
    """The run that the event files of a folder record.

    The files do not say how the run ended. It counts as complete, unless the HParams plugin has
    recorded a failure.

    Args:
        folder: The folder.
        files: Its event files.
        name: What the run is called.

    Raises:
        UnreadableRunError: No file has a readable event.
        FdlError: TensorBoard is not installed.
    """
    made = Foreign("tensorboard", folder, name, str(folder), moment(0))
    made.origin = "HParams of TensorBoard"
    times: list[float] = []
    plugins: dict[str, str] = {}
    for file in sorted(files):
        for event in _events(file, made.warnings):
            times.append(event.wall_time)
            for value in event.summary.value:
                _add(made, plugins, event, value)
    if not times:
        raise UnreadableRunError((made.warnings or [f"{folder} has no complete event"])[0])
    made.started, made.finished = moment(min(times)), moment(max(times))
    beside = folder / HPARAMS_FILE
    if beside.is_file():
        made.config, made.origin = read_yaml(beside), str(beside)
    return made


def _events(file: Path, warnings: list[str]) -> Iterator[Any]:
    """The events of a file, up to the first that is damaged or still being written."""
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.tensorflow_stub.errors import DataLossError, OutOfRangeError
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
    except ImportError:
        raise FdlError(
            f"{file} can only be read with TensorBoard, which is not installed",
            hint="pip install 'flodl[tensorboard]'",
        ) from None
    place = 0
    try:
        reader = PyRecordReader_New(str(file))
        while True:
            reader.GetNext()
            yield Event.FromString(reader.record())
            place += len(reader.record()) + _AROUND
    except OutOfRangeError:
        return
    except DataLossError as problem:
        if "truncated" not in str(problem):
            what = f"the record at byte {place} is damaged"
            warnings.append(f"{file}: {what}; what follows it is left out")
    except DecodeError:
        warnings.append(f"{file}: an event is damaged; what follows it is left out")
    except OSError as problem:
        warnings.append(f"{file} cannot be read: {problem.strerror}")


def _add(made: Foreign, plugins: dict[str, str], event: Any, value: Any) -> None:
    """Take over one value of an event; ``plugins`` says which plugin each tag is for."""
    about = value.metadata.plugin_data
    if value.HasField("metadata"):
        # Only the first value of a tag says which plugin it is for.
        plugins.setdefault(value.tag, about.plugin_name)
    if value.tag in (_SESSION, _END):
        _add_session(made, about.content)
        return
    found = None
    if value.HasField("simple_value"):
        found = value.simple_value
    elif value.HasField("tensor") and plugins.get(value.tag, _SCALARS) == _SCALARS:
        found = _number(value.tensor)
    if found is not None:
        made.curves.setdefault(value.tag, Curve()).add(event.step, found, event.wall_time)


def _add_session(made: Foreign, content: bytes) -> None:
    from google.protobuf.message import DecodeError
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    try:
        session = HParamsPluginData.FromString(content)
    except DecodeError:
        made.warnings.append(f"{made.path}: an event of the HParams plugin is damaged; left out")
        return
    made.state = _ENDINGS.get(session.session_end_info.status, made.state)
    # Their order in a message differs from process to process, and the files must not.
    for name, value in sorted(session.session_start_info.hparams.items()):
        kind = value.WhichOneof("kind")
        if kind in ("number_value", "string_value", "bool_value"):
            found = getattr(value, kind)
            is_whole = isinstance(found, float) and found.is_integer()
            made.config[name] = int(found) if is_whole else found


def _number(tensor: Any) -> float | None:
    """The value of a tensor with one number; None for any other tensor."""
    from tensorboard.util.tensor_util import make_ndarray

    try:
        array = make_ndarray(tensor)
    except (TypeError, ValueError):
        return None
    return float(array.item()) if array.size == 1 and array.dtype.kind in "biuf" else None
