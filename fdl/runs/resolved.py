"""The configuration of a run: ``config.json`` of a run directory, or a checkpoint's header.

Checkpoints are safetensors files (https://github.com/huggingface/safetensors#format). Their header
is JSON and is read without torch.
"""

# Paths here are text: the user types them before a colon.
# ruff: noqa: PTH110, PTH112, PTH113, PTH118, PTH120
from __future__ import annotations

import gzip
import json
import os
import zlib
from functools import lru_cache

from fdl.base.errors import FdlError, UsageError, failing
from fdl.base.files import open_bytes
from fdl.base.secrets import REDACTED, is_secret
from fdl.base.suggest import did_you_mean
from fdl.manifest.inspect.field import OVERRIDDEN, WINS, Field, parse, stated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from gzip import GzipFile
    from typing import Any, BinaryIO

    from fdl.manifest.inspect.field import Path

CONFIG = "config.json"
"""The file of a run directory that holds its configuration."""

_CHECKPOINTS = (".fdl", ".fdl.gz")
_METADATA_KEY = "config"
_MAX_CONFIG_BYTES = 16 << 20
# The limit of the safetensors library.
_MAX_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8


def split(asked: str) -> tuple[str, str] | None:
    """``runs/a/2026-01-31T10-00-00:training.lr`` as path and field; None for a field alone."""
    end = len(asked)
    while (end := asked.rfind(":", 0, end)) > 0:
        path, field = asked[:end], asked[end + 1 :]
        if path.count('"') % 2 == 0 and (
            os.path.exists(path) or "/" in path or os.sep in path or path.endswith(_CHECKPOINTS)
        ):
            return path, field
    return None


def explain(path: str, asked: str) -> list[Field]:
    """The recorded fields of one name, or all fields if no name is given.

    Args:
        path: A run directory or a checkpoint.
        asked: A manifest path, an argument or a flag: ``training.lr``, ``lr``, ``--lr``.

    Raises:
        FdlError: There is no record, or the record does not have this field.
    """
    record, where = _read(path)
    known = [_field(name, entry) for name, entry in _entries(record, ())]
    if not asked:
        return [field for _, field in known]
    argument = asked.removeprefix("--").replace("-", "_")
    found = [
        field
        for name, field in known
        if asked in (field.name, name)
        or argument in (name.replace("-", "_"), field.name.rpartition(".")[2])
    ]
    found = found or [field for _, field in known if field.name.startswith(f"{asked}.")]
    if not found:
        names = [field.name for _, field in known]
        every = f"it records: {', '.join(names) or 'nothing'}"
        raise UsageError(f"{where} records no `{asked}`", hint=did_you_mean(asked, names, every))
    return found


def settings(folder: str) -> dict[str, tuple[object, str]]:
    """Value and origin of each setting of a run, by the names of the program's own arguments.

    Raises:
        FdlError: There is no record.
    """
    record = _config_file(os.path.join(folder, CONFIG))
    return {name: _setting(name, entry) for name, entry in _entries(record, ())}


def _read(path: str) -> tuple[dict[str, Any], str]:
    """The record of a run, and the file that holds it."""
    if os.path.isdir(path):
        file = os.path.join(path, CONFIG)
        return _config_file(file), file
    if not os.path.exists(path):
        raise UsageError(f"{path} does not exist", hint="name a run's directory or a checkpoint")
    if not path.endswith(_CHECKPOINTS):
        return _config_file(path), path
    record = _checkpoint(path)
    if record is not None:
        return record, path
    beside = os.path.join(os.path.dirname(path), CONFIG)
    if not os.path.isfile(beside):
        raise UsageError(
            f"{path} has no record of its configuration, and no {CONFIG} is beside it",
            hint="name the directory of the run that made it",
        )
    return _config_file(beside), beside


def _config_file(file: str) -> dict[str, Any]:
    with failing(f"{file} cannot be read"), open_bytes(file) as stream:
        data = stream.read(_MAX_CONFIG_BYTES + 1)
    if len(data) > _MAX_CONFIG_BYTES:
        raise FdlError(
            f"{file} is larger than {_MAX_CONFIG_BYTES >> 20} MiB: not a record of a run"
        )
    return _mapping(data, file)


def _checkpoint(file: str) -> dict[str, Any] | None:
    """The configuration in a checkpoint's header, or None if it has none."""
    try:
        with open_bytes(file) as stream:
            packed = stream.read(2) == b"\x1f\x8b"
            stream.seek(0)
            unpacked = gzip.GzipFile(fileobj=stream) if packed else stream
            header = _header(unpacked, file)
    except (OSError, EOFError, zlib.error) as problem:
        reason = getattr(problem, "strerror", None) or "its compressed data are damaged"
        raise FdlError(f"{file} cannot be read: {reason}") from None
    metadata = header.get("__metadata__")
    text = metadata.get(_METADATA_KEY) if isinstance(metadata, dict) else None
    return _mapping(text.encode(), f"the configuration in {file}") if text else None


def _header(stream: GzipFile | BinaryIO, file: str) -> dict[str, Any]:
    length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
    if not 2 <= length <= _MAX_HEADER_BYTES:
        raise FdlError(f"{file} is not a checkpoint: it has no safetensors header")
    # Read in pieces, so that a wrong length does not reserve memory.
    data = bytearray()
    while len(data) < length and (piece := stream.read(min(1 << 20, length - len(data)))):
        data += piece
    if len(data) < length:
        raise FdlError(f"{file} is cut off inside its header", hint="restore it from a copy")
    return _mapping(bytes(data), f"the header of {file}")


def _mapping(data: bytes, where: str) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise FdlError(f"{where} is not a JSON object", hint="restore it from a copy")
    return content


def _entries(record: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """Name and content of every recorded value. Mappings without a value only group them."""
    for key, content in record.items():
        is_group = isinstance(content, dict) and content and "value" not in content
        if is_group:
            yield from _entries(content, (*path, key))
        else:
            yield ".".join((*path, key)), content


def _field(name: str, entry: object) -> tuple[str, Field]:
    known, lost = _said(entry)
    path = _path((known, *lost), name)
    secret_name = str(path[-1])
    stack = [stated(WINS, *_stated(known, secret_name))]
    stack += [stated(OVERRIDDEN, *_stated(one, secret_name)) for one in lost]
    return name, Field(path, stack[0].value, stack)


def _setting(name: str, entry: object) -> tuple[object, str]:
    known, lost = _said(entry)
    origin, value = _stated(known, str(_path((known, *lost), name)[-1]))
    return value, origin


def _said(entry: object) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The statement that wins, and those that it has overridden."""
    known = entry if isinstance(entry, dict) and "value" in entry else {"value": entry}
    overrides = known.get("overrides")
    rows = overrides if isinstance(overrides, list) else []
    return known, [one for one in rows if isinstance(one, dict)]


def _path(statements: Sequence[dict[str, Any]], name: str) -> Path:
    """The manifest's name for an argument, from any statement; else the argument's own name."""
    for statement in statements:
        field = statement.get("field")
        # A value from a variable or from `entry` has no field of its own.
        if isinstance(field, str) and not field.startswith("env.") and field != "entry":
            return _parsed(field)
    return tuple(name.split("."))


@lru_cache(maxsize=1024)  # thousands of runs have the same fields
def _parsed(field: str) -> Path:
    try:
        return parse(field)
    except UsageError:
        return (field,)


def _stated(entry: dict[str, Any], name: str) -> tuple[str, object]:
    """The origin and the value of a statement, without a secret."""
    value, origin = entry.get("value"), str(entry.get("origin") or "recorded")
    if origin.startswith("env "):
        origin = f"environment variable {origin.removeprefix('env ')}"
    return origin, REDACTED if is_secret(name, value) else value
