"""The swimlane view of a timeline: one HTML file that needs only a browser."""

from __future__ import annotations

import functools
import html
import os
from importlib import resources
from string import Template
from typing import Any

from flodl.files import write_text
from flodl.monitor.records import finite, to_json
from flodl.monitor.timeline_analysis import IDLE_BELOW_PCT, idle_gaps
from flodl.monitor.timeline_files import TimelineContent
from flodl.monitor.timeline_records import known_util

SHORTEST_GAP_MS = 500.0
"""Idle gaps of a GPU are hatched from this length on."""

# In the order of their dependencies; the report page uses the first one too.
_SCRIPTS = ("page/format.js", *(f"timeline_page/{name}.js" for name in ("data", "lanes", "view")))


def write_html(path: str | os.PathLike[str], content: TimelineContent, *, title: str) -> None:
    """Write the page; missing folders are created.

    Raises:
        OSError: The file cannot be written; an existing one stays.
    """
    data = to_json(_columns(content))
    page = _shell().substitute(title=html.escape(title), data=data)
    write_text(path, page)


def _columns(content: TimelineContent) -> dict[str, Any]:
    """Return the data of the page: one list per curve, which is short and quick to read."""
    t: list[float] = []
    cpu, used, total = [], [], []
    gpus: dict[int, dict[str, list[Any]]] = {
        device: {"util": [], "used": [], "total": []} for device in content.samples.names
    }
    for sample in content.samples.of():
        t.append(sample.t_ms)
        cpu.append(None if sample.cpu is None else finite(sample.cpu))
        used.append(sample.ram and sample.ram[0])
        total.append(sample.ram and sample.ram[1])
        known = {gpu.device: gpu for gpu in sample.gpus}
        for device, curves in gpus.items():
            gpu = known.get(device)
            curves["util"].append(gpu and known_util(gpu))
            curves["used"].append(gpu and gpu.reserved)
            curves["total"].append(gpu and gpu.total)
    return {
        "total_ms": finite(content.total_ms),
        "idle_below": IDLE_BELOW_PCT,
        "sample_count": len(content.samples),
        "ranks": _ranks(content),
        "t": t,
        "cpu": cpu,
        "ram": {"used": used, "total": total},
        "gpus": [
            {"device": device, "name": name, **gpus[device], "gaps": _gaps(t, gpus[device]["util"])}
            for device, name in content.samples.names.items()
        ],
        "events": [event.as_json() for event in content.events],
    }


def _ranks(content: TimelineContent) -> list[dict[str, Any]]:
    """Return how busy each rank was; empty for a single rank without such values."""
    known = {*content.samples.ranks, *(one.rank for one in content.events if one.rank is not None)}
    curves: dict[int | None, dict[str, list[Any]]] = {
        rank: {"t": [], "busy": []} for rank in sorted(known)
    }
    for sample in content.samples:
        if sample.busy is None and sample.rank is None:
            continue
        curve = curves.setdefault(sample.rank, {"t": [], "busy": []})
        curve["t"].append(sample.t_ms)
        curve["busy"].append(None if sample.busy is None else finite(sample.busy))
    told = any(value is not None for curve in curves.values() for value in curve["busy"])
    if len(curves) < 2 and not told:
        return []
    return [{"rank": rank or 0, **curve} for rank, curve in curves.items()]


def _gaps(t: list[float], util: list[float | None]) -> list[list[float]]:
    gaps = idle_gaps(zip(t, util, strict=True), IDLE_BELOW_PCT, SHORTEST_GAP_MS)
    return [[gap.start_ms, gap.end_ms] for gap in gaps]


@functools.cache
def _shell() -> Template:
    """Return the page with style and scripts filled in; open: ``$title`` and ``$data``."""
    folder = resources.files(__package__)
    scripts = "\n".join(f"<script>\n{_escaped(folder / name)}</script>" for name in _SCRIPTS)
    style = _escaped(folder / "timeline_page/timeline.css")
    shell = Template((folder / "timeline_page/timeline.html").read_text(encoding="utf-8"))
    return Template(shell.safe_substitute(style=style, scripts=scripts))


def _escaped(file: resources.abc.Traversable) -> str:
    """Return a file's text with its dollar signs escaped, so that they are not placeholders."""
    return file.read_text(encoding="utf-8").replace("$", "$$")
