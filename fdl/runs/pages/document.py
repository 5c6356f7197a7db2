"""The page of many runs as HTML: with everything inside, or fed by a server."""

from __future__ import annotations

import base64
import functools
import html
import json
from string import Template
from typing import TYPE_CHECKING, Any

from fdl.base.masking import KNOWN
from fdl.base.page_assets import CHART_SCRIPTS, asset, policy, read
from fdl.runs.pages.catalog import reports
from fdl.runs.pages.curves import AXES, Request, curve
from fdl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fdl.runs.pages.catalog import Entry
    from fdl.runs.pages.curves import Axis

# In the order of their dependencies, after those of all pages.
_SCRIPTS = (
    "base.js",
    "format.js",
    "state.js",
    "source.js",
    "filter.js",
    "model.js",
    "plot.js",
    "lines.js",
    "chart.js",
    "curves.js",
    "table.js",
    "parallel.js",
    "scatter.js",
    "differences.js",
    "details.js",
    "main.js",
)

_POINTS_PER_CURVE = 1500
_POINTS_IN_FILE = 1_500_000
"""Bounds of a page that is one file: some 16 bytes each."""


def served(title: str) -> str:
    """The page that reads everything from the server that it came from."""
    return _page(title, {"title": title, "version": __version__, "served": True}, served=True)


def whole(title: str, entries: Sequence[Entry], target: Path) -> str:
    """The page as one file with its data.

    Args:
        title: What the page is called.
        entries: The runs.
        target: Where the file will be, for links to the reports.
    """
    links = reports(entries, target)
    rows = [{"id": one.id, **one.row, "report": links.get(one.id)} for one in entries]
    content = {
        "title": title,
        "version": __version__,
        "served": False,
        "runs": {"version": 1, "order": [one.id for one in entries], "rows": rows},
        **_curves(entries),
    }
    return _page(title, content, served=False)


def _curves(entries: Sequence[Entry]) -> dict[str, Any]:
    """All curves on all axes. Columns that are equal are stored once."""
    listed = [(entry, name) for entry in entries for name in entry.row["curves"]]
    count = max(50, min(_POINTS_PER_CURVE, _POINTS_IN_FILE // max(1, len(listed))))
    columns: dict[bytes, int] = {}
    curves = []
    for entry, name in listed:
        for axis in AXES:
            pieces = curve(entry, _request(name, axis, count))
            if pieces.steps:
                gaps = [x for x, gap in zip(pieces.steps, pieces.broken, strict=True) if gap]
                numbers = [_doubles(one) for one in pieces[:4]]
                places = [columns.setdefault(one, len(columns)) for one in numbers]
                curves.append([entry.id, name, axis, gaps, *places])
    return {"curves": curves, "columns": [base64.b64encode(one).decode() for one in columns]}


def _request(name: str, axis: str, count: int) -> Request:
    known: dict[str, Axis] = {"step": "step", "epoch": "epoch", "time": "time", "wall": "wall"}
    return Request(name, known[axis], count)


def _doubles(column: list[float]) -> bytes:
    import struct

    return struct.pack(f"<{len(column)}d", *column)


def _page(title: str, content: dict[str, Any], *, served: bool) -> str:
    # `<` begins no tag inside a JSON string when it is written as an escape.
    data = KNOWN.text(json.dumps(content, ensure_ascii=False, allow_nan=False))
    data = data.replace("<", "\\u003c")
    return _shell().substitute(title=html.escape(title), policy=csp(served=served), data=data)


@functools.cache
def csp(*, served: bool) -> str:
    """The content security policy of the page: it allows only its own script and style.

    Args:
        served: Whether the page may also read from the server that it came from.
    """
    return policy([_script()], _style(), served=served)


@functools.cache
def _shell() -> Template:
    """The page with style and script filled in; open: ``$title $policy $data``."""
    places = {
        name: text.replace("$", "$$") for name, text in (("style", _style()), ("script", _script()))
    }
    return Template(Template(_own_asset("page.html")).safe_substitute(places))


@functools.cache
def _script() -> str:
    return "\n" + "\n".join([*map(asset, CHART_SCRIPTS), *map(_own_asset, _SCRIPTS)])


@functools.cache
def _style() -> str:
    return "\n" + asset("base.css") + _own_asset("page.css")


def _own_asset(name: str) -> str:
    return read(__package__, f"page/{name}")
