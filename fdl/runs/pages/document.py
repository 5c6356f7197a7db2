"""The page of many runs as HTML: with everything inside, or fed by a server."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from fdl.base.masking import KNOWN
from fdl.base.page_assets import Page
from fdl.runs.pages.catalog import reports
from fdl.runs.pages.curves import AXES, Request, curve
from fdl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fdl.runs.pages.catalog import Entry
    from fdl.runs.pages.curves import Axis

_PAGE = Page(
    __package__ or "fdl.runs.pages",
    "page",
    "page.html",
    (
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
    ),
    ("page.css",),
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
    return _PAGE.text(title, data.replace("<", "\\u003c"), served=served)


def csp() -> str:
    """The content security policy of the page that is served."""
    return _PAGE.policy(served=True)
