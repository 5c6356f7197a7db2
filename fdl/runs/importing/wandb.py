"""Runs of Weights & Biases: the transaction logs (``run-ID.wandb``) of its runs.

A log is a LevelDB log of protocol buffers. Its few fields that matter here are read without the
package ``wandb``, whose import takes a second and which need not be installed beside fdl.

Source: ``wandb_internal.proto`` of wandb, and LevelDB's ``doc/log_format.md``.
"""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from fdl.base.errors import failing
from fdl.base.protobuf import fields
from fdl.runs.importing.foreign import Curve, Foreign, UnreadableRunError, moment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOGS = ".wandb"

_MAGIC, _PREFACE = b":W&B", 7
_BLOCK, _HEAD = 32768, 7
_LAST_PIECES = (1, 4)
"""Kinds of a piece that ends a record: a whole record, or the last of several pieces."""

_HISTORY, _SUMMARY, _CONFIG, _RUN, _EXIT = 2, 3, 5, 17, 18
"""Numbers of the kinds of a record."""

_MEDIA = "_type"


class _Item(NamedTuple):
    """One value of a record: the names that lead to it, and the value."""

    path: tuple[str, ...]
    value: Any


def is_log(file: Path) -> bool:
    """Whether a file is a transaction log."""
    try:
        with file.open("rb") as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def read_log(file: Path) -> Foreign:
    """The run that a transaction log records, up to a record that is not complete.

    The values of a step stand at its ``_step``. A number of the summary that no curve has becomes a
    curve of one value. Media, texts and truth values are left out. A run without an end may be
    running or killed; it counts as interrupted.

    Raises:
        UnreadableRunError: The file cannot be read, or has no run.
    """
    with failing(f"{file} cannot be read", kind=UnreadableRunError):
        data = file.read_bytes()
    made = Foreign("wandb", file.parent, "", file.parent.name, moment(0), state="interrupted")
    made.origin = "config of W&B"
    summary: dict[str, float] = {}
    try:
        for record in _records(data):
            _add(made, summary, record)
    except (
        ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
        struct.error,
    ):  # fmt: skip
        # A field may hold another type than its number says.
        made.warnings.append(f"{file}: a record is damaged; what follows it is left out")
    if not made.name:
        raise UnreadableRunError((made.warnings or [f"{file} has no run"])[0])
    made.curves = {name: made.curves[name] for name in sorted(made.curves)}
    last = max((curve.steps[-1] for curve in made.curves.values()), default=0)
    for name, value in summary.items():
        if name not in made.curves:
            made.curves[name] = Curve([last], [value], [math.nan])
    return made


def _records(data: bytes) -> Iterator[bytes]:
    place, whole = _PREFACE, b""
    while place + _HEAD <= len(data):
        room = _BLOCK - place % _BLOCK
        if room < _HEAD:
            place += room
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        place += _HEAD
        if place + length > len(data):
            return
        whole += data[place : place + length]
        place += length
        if kind in _LAST_PIECES:
            yield whole
            whole = b""


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and content of each field, whose type follows from the number."""
    return fields(data)


def _items(data: bytes) -> Iterator[_Item]:
    """The values of a history, a summary or a config; all three have the same fields."""
    for number, content in _fields(data):
        if number != 1 or not isinstance(content, bytes):
            continue
        path: list[str] = []
        text = b"null"
        for inner, part in _fields(content):
            if inner in (1, 2):
                path.append(part.decode())
            elif inner == 16:
                text = part
        yield _Item(tuple(path), json.loads(text))


def _add(made: Foreign, summary: dict[str, float], record: bytes) -> None:
    for kind, content in _fields(record):
        if kind == _RUN:
            _describe(made, content)
        elif kind == _CONFIG:
            _configure(made, content)
        elif kind == _HISTORY:
            _log(made, content)
        elif kind == _SUMMARY:
            summary.update(_numbers(list(_items(content))))
        elif kind == _EXIT:
            code = dict(_fields(content)).get(1, 0)
            made.state = "failed" if code else "complete"
            made.status = f"exit code {code}" if code else "finished"


def _log(made: Foreign, content: bytes) -> None:
    items = list(_items(content))
    own = {one.path[0]: one.value for one in items if one.path[0].startswith("_")}
    step, time = int(own.get("_step", 0)), float(own.get("_timestamp", math.nan))
    if math.isfinite(time):
        made.finished = moment(time)
    for name, value in _numbers(items).items():
        made.curves.setdefault(name, Curve()).add(step, value, time)


def _numbers(items: list[_Item]) -> dict[str, float]:
    """The numbers among values, by name; those of images, tables and histograms are not."""
    media = {one.path[:-1] for one in items if one.path[-1] == _MEDIA}
    return {
        ".".join(path): float(value)
        for path, value in items
        if not path[0].startswith("_")
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and not any(path[:end] in media for end in range(1, len(path)))
    }


def _configure(made: Foreign, content: bytes) -> None:
    for path, value in _items(content):
        if not path[0].startswith("_"):
            made.config[".".join(path)] = value


def _describe(made: Foreign, content: bytes) -> None:
    texts: dict[int, list[str]] = {}
    for number, part in _fields(content):
        if number == 4:
            _configure(made, part)
        elif number == 17:
            made.started = moment(dict(_fields(part)).get(1, 0))
        elif isinstance(part, bytes) and number in _TEXTS:
            texts.setdefault(number, []).append(part.decode())
    found = {name: texts[number] for number, name in _TEXTS.items() if number in texts}
    made.name = found.get("name", found.get("id", [""]))[0]
    made.note = found.get("note", [""])[0]
    made.tags = found.get("tags", [])
    for name in ("project", "group", "job_type"):
        if name in found:
            made.environment[f"wandb.{name}"] = found[name][0]


_TEXTS = {
    1: "id", 3: "project", 6: "group", 7: "job_type", 8: "name", 9: "note", 10: "tags"
}  # fmt: skip
"""Number of a field of the run -> what it says."""
