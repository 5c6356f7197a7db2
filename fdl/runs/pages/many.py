"""The page of many runs as it is served: its rows, its curves, and the page of each run."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import TYPE_CHECKING

from fdl.base.files import open_own
from fdl.runs.pages.curves import AXES, Request as Wanted, packed
from fdl.runs.pages.document import csp, served
from fdl.runs.pages.one import RunPage
from fdl.runs.pages.server import HTML, Answer, Refused, Request, in_json
from fdl.runs.run import REPORT

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from pathlib import Path

    from fdl.runs.pages.catalog import Catalog
    from fdl.runs.pages.curves import Axis

_MOST_PIECES = 10_000
_PATIENCE_SECONDS = 0.5
"""How long a page waits for rows of runs that are being read."""


class RunsPage:
    """The page of a catalog.

    Args:
        catalog: The runs.
        title: What the page is called.
    """

    def __init__(self, catalog: Catalog, title: str) -> None:
        self._catalog = catalog
        self._title = title
        self._pages: dict[Path, RunPage] = {}

    def answer(self, request: Request, closing: threading.Event) -> Answer | Iterator[bytes]:
        """The answer to a request that was let in.

        Raises:
            Refused: The request cannot be answered.
        """
        path = request.path
        if path == "/":
            return Answer(served(self._title).encode(), HTML, csp())
        if path == "/runs":
            since = int(_number(request, "since", -1))
            return in_json(self._catalog.changes(since, _PATIENCE_SECONDS))
        if path == "/curves":
            entries = self._catalog.by_ids(_ids(request.text("runs")))
            body = packed(entries, _wanted(request), band=request.text("band") == "1")
            return Answer(body, "application/octet-stream")
        word, slash, rest = path.removeprefix("/").partition("/")
        if slash and word.isdecimal() and word.isascii():
            found = self._catalog.by_ids({int(word[:9])})
            if found and rest == REPORT:
                return _report(found[0].path)
            if found:
                page = self._pages.setdefault(found[0].path, RunPage(found[0].path))
                return page.answer(request.below(f"/{rest}"), closing)
        raise Refused(HTTPStatus.NOT_FOUND, "there is nothing at this address")


def _report(run: Path) -> Answer:
    """A run's report. It may come from anywhere, so it must not read what this server offers."""
    try:
        with open_own(run / REPORT) as stream:
            body = stream.read()
    except OSError:
        raise Refused(HTTPStatus.NOT_FOUND, "this run has no report") from None
    return Answer(body, HTML, "sandbox allow-scripts allow-downloads")


def _wanted(request: Request) -> Wanted:
    axis = request.text("axis", "step")
    if axis not in AXES:
        raise Refused(HTTPStatus.BAD_REQUEST, f"axis is one of {', '.join(AXES)}")
    known: dict[str, Axis] = {"step": "step", "epoch": "epoch", "time": "time", "wall": "wall"}
    return Wanted(
        request.text("metric"),
        known[axis],
        max(2, min(_MOST_PIECES, int(_number(request, "count", 1000)))),
        _number(request, "first", -math.inf),
        _number(request, "last", math.inf),
    )


def _number(request: Request, name: str, default: float) -> float:
    if name not in request.query:
        return default
    value = float(request.text(name))
    if math.isnan(value):
        raise ValueError(name)
    return value


def _ids(text: str) -> set[int]:
    """Numbers of runs as text: ``0-3,7``."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if high - low > 100_000:
            raise ValueError(text)
        found.update(range(low, high + 1))
    return found
