"""A timeline as a table for a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence

from flodl.monitor.timeline_records import TimelineEvent, TimelineSample

_GPU_PARTS = {"u": "pct", "vu": "vram_used", "va": "vram_alloc", "vt": "vram_total"}


def csv_text(
    samples: Sequence[TimelineSample], events: Sequence[TimelineEvent], devices: Sequence[int]
) -> str:
    """Return one row per sample and per event, in order of time.

    The columns ``rank`` and ``busy_pct`` exist if a record has such a value.
    """
    records: list[TimelineSample | TimelineEvent] = [*samples, *events]
    ranked = any(one.rank is not None for one in records) or any(
        one.busy is not None for one in samples
    )
    gpus = [f"gpu{device}_{part}" for device in devices for part in _GPU_PARTS.values()]
    who = ["rank", "busy_pct"] if ranked else []
    head = ["t_ms", *who, "cpu_pct", "ram_used", "ram_total", *gpus, "event", "fields"]
    table = io.StringIO()
    rows = csv.DictWriter(table, head, extrasaction="ignore", lineterminator="\n")
    rows.writeheader()
    for record in sorted(records, key=lambda one: one.t_ms):
        rows.writerow(_of_sample(record) if isinstance(record, TimelineSample) else _of(record))
    return table.getvalue()


def _of_sample(sample: TimelineSample) -> dict[str, str]:
    used, total = sample.ram or (None, None)
    row = {"t_ms": sample.t_ms, "rank": sample.rank, "busy_pct": sample.busy}
    row |= {"cpu_pct": sample.cpu, "ram_used": used, "ram_total": total}
    for gpu in sample.as_json()["gpus"]:
        row |= {f"gpu{gpu['d']}_{part}": gpu[key] for key, part in _GPU_PARTS.items()}
    return {name: _number(value) for name, value in row.items()}


def _of(event: TimelineEvent) -> dict[str, str]:
    fields = json.dumps(event.fields_as_json(), ensure_ascii=False) if event.fields else ""
    row = {"t_ms": _number(event.t_ms), "rank": _number(event.rank)}
    return row | {"event": event.kind.value, "fields": fields}


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return ""
    return str(value) if isinstance(value, int) else f"{value:.15g}"
