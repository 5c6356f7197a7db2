"""Timelines in files: JSON to save and load, CSV for a spreadsheet, swimlanes for a browser."""

from __future__ import annotations

import csv
import heapq
import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdl.base import page_assets
from fdl.base.files import write_text
from flodl.errors import DataError
from flodl.monitor.records import finite, to_json
from flodl.monitor.resources import GpuSnapshot
from flodl.monitor.timeline_records import EventKind, TimelineEvent, TimelineSample
from flodl.monitor.timeline_store import SampleStore


@dataclass
class TimelineContent:
    """The content of a timeline at one moment."""

    samples: SampleStore
    events: list[TimelineEvent]
    total_ms: float


def write_json(path: str | os.PathLike[str], content: TimelineContent) -> None:
    """Write ``{"total_ms", "devices": {index: name}, "samples": […], "events": […]}``.

    Missing folders are created; every record has its own line.
    """
    write_text(path, _as_json(content) + "\n")


def _as_json(content: TimelineContent) -> str:
    samples = ",\n".join(to_json(sample.as_json()) for sample in content.samples)
    events = ",\n".join(to_json(event.as_json()) for event in content.events)
    devices = {str(device): name for device, name in content.samples.names.items()}
    return (
        f'{{"total_ms":{to_json(finite(content.total_ms))},"devices":{to_json(devices)},\n'
        f'"samples":[\n{samples}],\n"events":[\n{events}]}}'
    )


def read_json(path: str | os.PathLike[str]) -> TimelineContent:
    """Read the result of :func:`write_json`.

    Raises:
        OSError: The file cannot be read.
        DataError: The file is not a timeline.
    """
    try:
        form = json.loads(Path(path).read_bytes())
        names = {int(device): str(name) for device, name in form.get("devices", {}).items()}
        content = TimelineContent(SampleStore(), [], float(form["total_ms"]))
        content.samples.extend(_sample(one, names) for one in form["samples"])
        content.events.extend(_event(one) for one in form["events"])
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise DataError(
            f"{os.fspath(path)} is not a timeline ({type(error).__name__}: {error}); "
            "give a file that Timeline.save_json wrote"
        ) from error
    return content


def write_csv(path: str | os.PathLike[str], content: TimelineContent) -> None:
    """Write one row per sample and per event, in order of time.

    The columns ``rank`` and ``busy_pct`` exist if a record has such a value.
    """
    devices = list(content.samples.names)
    ranked = any(one.rank is not None or one.busy is not None for one in content.samples)
    ranked = ranked or any(one.rank is not None for one in content.events)
    header = ["t_ms", *(["rank", "busy_pct"] if ranked else [])]
    lead = len(header)
    header += ["cpu_pct", "ram_used", "ram_total"]
    for device in devices:
        header += [
            f"gpu{device}_{part}" for part in ("pct", "vram_used", "vram_alloc", "vram_total")
        ]
    blank = [""] * (len(header) - lead)
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow([*header, "event", "fields"])
    samples = (
        (one.t_ms, [_number(one.rank), _number(one.busy)], _cells(one, devices))
        for one in content.samples
    )
    events = (
        (one.t_ms, [_number(one.rank), ""], [*blank, *_event_cells(one)]) for one in content.events
    )
    for t_ms, who, cells in heapq.merge(samples, events, key=lambda row: row[0]):
        rows.writerow([_number(t_ms), *(who if ranked else []), *cells])
    write_text(path, table.getvalue())


def _cells(sample: TimelineSample, devices: list[int]) -> list[str]:
    used, total = sample.ram or ("", "")
    cells = [_number(sample.cpu), str(used), str(total)]
    gpus = {gpu["d"]: gpu for gpu in sample.as_json()["gpus"]}
    for device in devices:
        gpu = gpus.get(device)
        cells += [""] * 4 if gpu is None else [_number(gpu[key]) for key in ("u", "vu", "va", "vt")]
    return [*cells, "", ""]


def _event_cells(event: TimelineEvent) -> Iterator[str]:
    yield event.kind.value
    yield json.dumps(event.fields_as_json(), ensure_ascii=False) if event.fields else ""


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return ""
    return str(value) if isinstance(value, int) else f"{value:.15g}"


def _sample(form: Mapping[str, Any], names: Mapping[int, str]) -> TimelineSample:
    used_total = form["ram"]
    gpus = tuple(
        GpuSnapshot(
            device=int(gpu["d"]),
            name=names.get(int(gpu["d"]), ""),
            util=_optional(gpu["u"]),
            reserved=int(gpu["va"]),
            total=int(gpu["vt"]),
        )
        for gpu in form["gpus"]
    )
    ram = None if used_total is None else (int(used_total[0]), int(used_total[1]))
    cpu, busy = _optional(form["cpu"]), _optional(form.get("busy"))
    return TimelineSample(float(form["t"]), cpu, ram, gpus, _rank(form), busy)


def _rank(form: Mapping[str, Any]) -> int | None:
    rank = form.get("r")
    if rank is not None and (type(rank) is not int or rank < 0):
        raise TypeError(f"{rank!r} is not the number of a rank")
    return rank


def _optional(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _event(form: Mapping[str, Any]) -> TimelineEvent:
    # JSON has no nan: a non-finite number was written as null and is read as nan.
    fields = {
        name: math.nan if value is None else value
        for name, value in form.items()
        if name not in ("t", "k", "r")
    }
    return TimelineEvent(float(form["t"]), EventKind(form["k"]), fields, _rank(form))


def write_html(path: str | os.PathLike[str], content: TimelineContent, *, title: str) -> None:
    """Write the page; missing folders are created.

    Raises:
        OSError: The file cannot be written; an existing one stays.
    """
    data = f'{{"title":{to_json(title)},"timeline":{_as_json(content)}}}'
    write_text(path, page_assets.page(title, data))
