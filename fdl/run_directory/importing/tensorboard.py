"""Event folders of TensorBoard: scalars in both forms, and the settings of its HParams plugin.

The messages are those of TensorFlow's ``event.proto``, ``summary.proto`` and ``tensor.proto``, and
of TensorBoard's ``plugins/hparams/plugin_data.proto``; the numbers below are their field numbers.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from fdl.run_directory.importing.foreign import (
    Curve,
    Foreign,
    UnreadableRunError,
    moment,
    read_yaml,
)
from fdl.run_directory.importing.protobuf import (
    DamagedMessageError,
    double,
    fields,
    signed,
    single,
    text,
    varints,
)
from fdl.run_directory.importing.tfrecord import DamagedRecordError, records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EVENTS = ".tfevents."
HPARAMS_FILE = "hparams.yaml"

_SCALARS, _HPARAMS = "scalars", "hparams"
_SESSION = "_hparams_/session_start_info"
_END = "_hparams_/session_end_info"
# Number of a type in TensorProto -> how struct reads one of its values.
_PACKED = {1: "<f", 2: "<d", 3: "<i", 9: "<q", 10: "<?", 14: "", 19: "<e"}
_BFLOAT16 = 14
_ENDINGS = {1: "complete", 2: "failed"}
"""Status in the HParams plugin -> state of a run."""


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
    """
    reader = _Reader()
    for file in sorted(files):
        try:
            with file.open("rb") as stream:
                for data in records(stream):
                    reader.add(data)
        except DamagedRecordError as problem:
            reader.warnings.append(f"{file}: {problem}; what follows it is left out")
        except DamagedMessageError:
            reader.warnings.append(f"{file}: an event is damaged; what follows it is left out")
        except OSError as problem:
            reader.warnings.append(f"{file} cannot be read: {problem.strerror}")
    if reader.first is None:
        why = reader.warnings[0] if reader.warnings else f"{folder} has no complete event"
        raise UnreadableRunError(why)
    made = Foreign("tensorboard", folder, name, str(folder), moment(reader.first))
    made.finished = moment(reader.last)
    made.curves = reader.curves
    made.config, made.origin = reader.settings, "HParams of TensorBoard"
    made.state = _ENDINGS.get(reader.status, "complete")
    made.warnings = reader.warnings
    beside = folder / HPARAMS_FILE
    if beside.is_file():
        made.config, made.origin = read_yaml(beside), str(beside)
    return made


class _Reader:
    """Collects scalars and settings from events.

    Attributes:
        first: Unix time of the first event; None before it.
        last: That of the last one.
        status: Status of the HParams plugin; 0 without one.
    """

    def __init__(self) -> None:
        self.curves: dict[str, Curve] = {}
        self.settings: dict[str, object] = {}
        self.warnings: list[str] = []
        self.first: float | None = None
        self.last = 0.0
        self.status = 0
        self._plugins: dict[str, str] = {}

    def add(self, data: bytes) -> None:
        """Take over one event.

        Raises:
            DamagedMessageError: The data are not an event.
        """
        time, step, summaries = 0.0, 0, []
        for number, value in fields(data):
            if number == 1:
                time = double(value)
            elif number == 2 and isinstance(value, int):
                step = signed(value)
            elif number == 5 and isinstance(value, bytes):
                summaries.append(value)
        self.first = time if self.first is None else min(self.first, time)
        self.last = max(self.last, time)
        for summary in summaries:
            for number, value in fields(summary):
                if number == 1 and isinstance(value, bytes):
                    self._add_value(value, step, time)

    def _add_value(self, data: bytes, step: int, time: float) -> None:
        tag, found, tensor, content = "", None, b"", b""
        for number, value in fields(data):
            if number == 1:
                tag = text(value)
            elif number == 2:
                found = single(value)
            elif number == 8 and isinstance(value, bytes):
                tensor = value
            elif number == 9 and isinstance(value, bytes):
                plugin, content = _plugin(value)
                # Only the first value of a tag says which plugin it is for.
                self._plugins.setdefault(tag, plugin)
        if tag in (_SESSION, _END):
            self._add_session(content)
            return
        if found is None and tensor and self._plugins.get(tag, _SCALARS) == _SCALARS:
            found = _number(tensor)
        if found is not None:
            self.curves.setdefault(tag, Curve()).add(step, found, time)

    def _add_session(self, content: bytes) -> None:
        for number, value in fields(content):
            if number == 3 and isinstance(value, bytes):  # session_start_info
                for key, entry in fields(value):
                    if key == 1 and isinstance(entry, bytes):
                        self._add_setting(entry)
            elif number == 4 and isinstance(value, bytes):  # session_end_info
                for key, entry in fields(value):
                    if key == 1 and isinstance(entry, int):
                        self.status = entry

    def _add_setting(self, data: bytes) -> None:
        """One entry of a map of ``google.protobuf.Value``."""
        name, value = "", b""
        for number, part in fields(data):
            if number == 1:
                name = text(part)
            elif number == 2 and isinstance(part, bytes):
                value = part
        for number, part in fields(value):
            if number == 2:
                real = double(part)
                self.settings[name] = int(real) if real.is_integer() else real
            elif number == 3:
                self.settings[name] = text(part)
            elif number == 4:
                self.settings[name] = bool(part)


def _plugin(metadata: bytes) -> tuple[str, bytes]:
    """Name and content of the plugin that a value's metadata name."""
    name, content = "", b""
    for number, value in fields(metadata):
        if number == 1 and isinstance(value, bytes):
            for key, part in fields(value):
                if key == 1:
                    name = text(part)
                elif key == 2 and isinstance(part, bytes):
                    content = part
    return name, content


def _number(tensor: bytes) -> float | None:
    """The value of a tensor with one element; None for any other tensor."""
    kind, size, content = 0, 1, b""
    values: list[float] = []
    for number, value in fields(tensor):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 2 and isinstance(value, bytes):
            size = _size(value)
        elif number == 4 and isinstance(value, bytes):
            content = value
        elif number == 5 and isinstance(value, bytes):
            values += [one for (one,) in struct.iter_unpack("<f", _whole(value, 4))]
        elif number == 6 and isinstance(value, bytes):
            values += [one for (one,) in struct.iter_unpack("<d", _whole(value, 8))]
        elif number in (7, 10, 11):
            values += [float(signed(one)) for one in varints(value)]
        elif number == 13:
            values += [_half(one, kind) for one in varints(value)]
    if size != 1 or kind not in _PACKED:
        return None
    if content:
        if kind == _BFLOAT16:
            return _half(int.from_bytes(content[:2], "little"), kind)
        form = _PACKED[kind]
        whole = len(content) == struct.calcsize(form)
        return float(struct.unpack(form, content)[0]) if whole else None
    return values[0] if values else 0.0


def _half(bits: int, kind: int) -> float:
    if kind == _BFLOAT16:
        return float(struct.unpack("<f", struct.pack("<I", (bits & 0xFFFF) << 16))[0])
    return float(struct.unpack("<e", struct.pack("<H", bits & 0xFFFF))[0])


def _whole(data: bytes, size: int) -> bytes:
    return data[: len(data) // size * size]


def _size(shape: bytes) -> int:
    """The number of elements of a shape."""
    size = 1
    for number, dimension in fields(shape):
        if number == 2 and isinstance(dimension, bytes):
            length = next((value for key, value in fields(dimension) if key == 1), 0)
            size *= length if isinstance(length, int) else 0
    return size
