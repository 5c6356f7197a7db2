"""The page of many runs: served with its rows, curves and the page of each run."""

from __future__ import annotations

import json
import math
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, get_args

from fdl.base import page_assets
from fdl.base.errors import UsageError
from fdl.base.masking import KNOWN
from fdl.runs import query
from fdl.runs.pages.curves import Axis, Request as Wanted, packed
from fdl.runs.pages.one import RunPage
from fdl.runs.pages.server import HTML, Answer, Refused, Request, in_json, masked
from fdl.runs.quantity import Known, plain
from fdl.version import __version__

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fdl.runs.pages.catalog import Catalog, Entry

_MOST_PIECES = 10_000
_PATIENCE_SECONDS = 0.5
"""How long a page waits for rows of runs that are being read."""

_AXES: dict[str, Axis] = {axis: axis for axis in get_args(Axis)}
_LONGEST_HINT = 100
_COMPARES = re.compile(r"[<>=~]|\bin\s*\(")
_WORD = re.compile(r"`[^`]*`|[^\s()]+")


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
            parts = {"title": self._title, "version": __version__}
            content = {name: KNOWN.text(json.dumps(part)) for name, part in parts.items()}
            page = page_assets.page(f"Runs · {self._title}", content, served=True)
            return Answer(page.encode(), HTML, page_assets.policy(served=True))
        if path == "/runs":
            since = int(request.number("since", -1))
            return masked(self._catalog.changes(since, _PATIENCE_SECONDS).as_json())
        if path == "/where":
            return in_json(_where(self._catalog.known(), request.text("text")))
        if path == "/curves":
            entries = self._catalog.by_ids(set(map(int, request.text("runs").split(","))))
            body = packed(entries, _wanted(request), band=request.text("band") == "1")
            return Answer(body, "application/octet-stream")
        word, slash, rest = path.removeprefix("/").partition("/")
        if slash and word.isdecimal() and word.isascii():
            found = self._catalog.by_ids({int(word[:9])})
            if found:
                own = self._pages.setdefault(found[0].path, RunPage(found[0].path))
                return own.answer(request._replace(path=f"/{rest}"), closing)
        raise Refused(HTTPStatus.NOT_FOUND, "there is nothing at this address")


def _where(entries: Sequence[Entry], text: str) -> dict[str, Any]:
    """The runs that meet a filter: a condition of ``fdl runs list --where``, else words."""
    runs = {entry.id: entry.run for entry in entries}
    known = Known(list(runs.values()))
    if not _is_condition(text, known):
        words = text.lower().split()
        met = [one.id for one in entries if all(word in _searched(one) for word in words)]
        return {"ids": met, "problem": ""}
    try:
        condition = query.parse(text, known)
    except UsageError as problem:
        said = problem.message.removeprefix("--where: ").partition("\n")[0]
        hint = problem.hint if len(problem.hint) <= _LONGEST_HINT else ""
        return {"ids": None, "problem": "; ".join(filter(None, (said, hint)))}
    return {
        "ids": [number for number, run in runs.items() if query.matches(condition, run)],
        "problem": "",
    }


def _is_condition(text: str, known: Known) -> bool:
    """Whether a filter compares, or names only settings that are true or false."""
    if _COMPARES.search(text):
        return True
    words = [word for word in _WORD.findall(text) if word not in ("and", "or", "not")]
    try:
        return all(known.is_truth(known.resolve(word)) for word in words)
    except UsageError:
        return False


def _searched(entry: Entry) -> str:
    """All texts of a run."""
    row = entry.row
    settings = [f"{name}={plain(value)}" for name, (value, _) in row["config"].items()]
    texts = [row["name"], row["title"], row["path"], row["state"], row["note"], *row["tags"]]
    return "\n".join([*texts, *settings]).lower()


def _wanted(request: Request) -> Wanted:
    axis = request.text("axis", "step")
    if axis not in _AXES:
        raise Refused(HTTPStatus.BAD_REQUEST, f"axis is one of {', '.join(_AXES)}")
    return Wanted(
        request.text("metric"),
        _AXES[axis],
        max(2, min(_MOST_PIECES, int(request.number("count", 1000)))),
        request.number("first", -math.inf),
        request.number("last", math.inf),
    )
