"""Event folders of TensorBoard: scalars in both forms, and the settings of its HParams plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fdl.base.errors import FdlError
from fdl.runs.importing.foreign import Curve, Foreign, UnreadableRunError, moment, read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

EVENTS = ".tfevents."
HPARAMS_FILE = "hparams.yaml"

_SCALARS = "scalars"
_SESSION = "_hparams_/session_start_info"
_END = "_hparams_/session_end_info"
_ENDINGS = {1: "complete", 2: "failed"}
"""Status in the HParams plugin -> state of a run."""
_AROUND = 16
"""The bytes of a record beside its data: length and two checksums."""


def read(folder: Path, files: Sequence[Path], name: str) -> Foreign:
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
    for name, value in session.session_start_info.hparams.items():
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
