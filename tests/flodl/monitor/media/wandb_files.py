"""What a run of Weights & Biases wrote offline, read from the files that ``wandb sync`` uploads."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any


def offline_files(folder: Path) -> list[Path]:
    """The files of all runs, the oldest first."""
    found = [path for path in folder.rglob("*.wandb") if not path.parent.is_symlink()]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def offline_records(place: Path) -> list[Any]:
    """The records of a file, or of the only one in a folder: LevelDB with protocol buffers."""
    from wandb.proto import wandb_internal_pb2

    [file] = [place] if place.is_file() else offline_files(place)
    data, at, whole, found = file.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the last piece of a record
            found.append(wandb_internal_pb2.Record.FromString(whole))
            whole = b""
    return found


def history(place: Path) -> dict[str, list[Any]]:
    """The logged values by name, in order; images, histograms and tables as their descriptions."""
    rows: dict[str, list[Any]] = {}
    fields: dict[tuple[str, int], dict[str, Any]] = {}
    for one in offline_records(place):
        for item in one.history.item:
            key, *inner = item.nested_key or [item.key]
            value = json.loads(item.value_json)
            if inner:  # one field of an image, a histogram or a table
                fields[key, one.num] = fields.get((key, one.num), {}) | {inner[0]: value}
            else:
                rows.setdefault(key, []).append(value)
    for (key, _), value in fields.items():
        rows.setdefault(key, []).append(value)
    return rows
