"""The page of one run as it is served, from the files in the run's folder.

A training writes what the page shows into the folder ``page`` of its run:

- ``records.jsonl`` only grows: the facts of the run, its epochs and its end.
- ``now.json`` is replaced: the position of the training, the ledger, the load of the machine.
- ``graph.svg`` is the drawing of the model.

A place in ``records.jsonl`` is the id of an event. A reader that comes back names the last one, so
it gets each record once. Step curves and media have folders of their own.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from fdl.base import page_assets
from fdl.base.own_files import inside, open_own, read_json
from fdl.runs.pages.rows import PAGE as FOLDER, mark
from fdl.runs.pages.server import HTML, Answer, Refused, Request, in_json
from fdl.runs.run import DEAD, REPORT, read
from fdl.runs.step_files import Pieces, StepFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TIMELINE = "timeline.json"
_MEDIA = "media"
POINTS = 2000
"""Points of a curve, unless a reader asks for another number."""

_MOST_POINTS = 20_000
_POINTS_OF_NEWS = 400
_MOMENTS = 1000
_LOOK_SECONDS = 0.2
_SILENT_SECONDS = 15.0
"""Longest silence of a stream: keeps proxies from closing it and detects readers that are gone."""

_EVENTS = {"run": "info", "epoch": "epoch", "finish": "complete"}
_FACTS = ("progress", "ledger")
_EVENTS_KEPT = 256


class Line(NamedTuple):
    """One record: its kind, its JSON, and the place in the file behind it."""

    kind: str
    text: str
    end: int


class RunPage:
    """The page of one run.

    Args:
        run: The folder of the run.
        ask: Asks the training for what a reader wants; returns why it is refused, or nothing.
            Without it, the page has no buttons.
        note_reader: Called whenever somebody reads.

    Attributes:
        acts: What the training offers to the readers of its page.
    """

    def __init__(
        self,
        run: Path,
        ask: Callable[[str], str] | None = None,
        note_reader: Callable[[], None] = lambda: None,
    ) -> None:
        self.acts: dict[str, Any] = {}
        self._run = run
        self._folder = run / FOLDER
        self._ask = ask
        self._note_reader = note_reader
        self._news = _News(run, self._facts)

    def answer(self, request: Request, closing: threading.Event) -> Answer | Iterator[bytes]:
        """The answer to a request that was let in.

        Raises:
            Refused: The request cannot be answered.
        """
        self._note_reader()
        path = request.path
        if request.body is not None and self._ask is not None:
            if problem := self._ask(request.body.decode("utf-8", "replace")):
                raise Refused(HTTPStatus.BAD_REQUEST, problem)
            return in_json({"ok": True})
        if path == "/":
            return Answer(self._page().encode(), HTML, page_assets.policy(served=True))
        if path == "/events":
            after = request.last_id or request.text("after")
            known = int(after[:18]) if after.isascii() and after.isdigit() else 0
            return self._stream(known, closing)
        if path == "/graph.svg":
            # A drawing opened on its own may use styles, but not run scripts or fetch anything.
            policy = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
            drawing = self._required("drawing of its model", FOLDER, "graph.svg")
            return Answer(drawing, "image/svg+xml", policy)
        if path == f"/{REPORT}":
            # It may come from anywhere, so it must not read what this server offers.
            report = self._required("report", REPORT)
            return Answer(report, HTML, "sandbox allow-scripts allow-downloads")
        if path == f"/{TIMELINE}":
            return Answer(self._content(TIMELINE))
        if path == "/records.jsonl":
            body = "".join(f"{line.text}\n" for line in self._lines(0))
            return Answer(body.encode(), "application/jsonl")
        if path == "/api/series":
            return in_json(self._series(request))
        if path in ("/api/media", "/image.png"):
            return _media_answer(self._run, request)
        raise Refused(HTTPStatus.NOT_FOUND, f"there is no {path:.80}")

    def _page(self) -> str:
        lines, finish = self._lines_and_end(0)
        info = _newest(lines, "run")
        if info is None:
            text = "the run has no page yet, or another program wrote it; try again"
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, text)
        now = self._now()
        files = StepFiles.read(self._run)
        parts = {
            "series": [_whole(files, name, POINTS) for name in files.names],
            "clock": _clock(files),
            "progress": now.get("progress"),
            "loads": now.get("loads") or [],
            "ledger": now.get("ledger") or {},
            "live": {
                "session": now.get("session"),
                "drawing": now.get("drawing") or 0,
                "buttons": self._ask is not None,
                "after": lines[-1].end,
                "timeline": (self._run / TIMELINE).is_file(),
            },
        }
        records = (line.text for line in lines if line.kind == "epoch")
        end = finish.text if finish else "null"
        return page_assets.run_page(json.loads(info.text), records, parts, finish=end, served=True)

    def _stream(self, after: int, closing: threading.Event) -> Iterator[bytes]:
        """The events of a run: its facts, the records behind a place, and what happens then."""
        # Before the first byte: a reader that has it misses nothing that happens from then on.
        part, seen = self._news.join()
        yield b"retry: 1000\n\n"
        lines, end = self._lines_and_end(0)
        place = after if not lines or after <= lines[-1].end else 0
        if info := _newest(lines, "run"):
            yield self._event(info, with_id=False)
        silent, ended = 0.0, False
        while True:
            records = [line for line in lines if line.end > place and line is not end]
            part = b"".join(map(self._event, records)) + part
            if end is not None:
                closing.wait(_LOOK_SECONDS)  # curves and media have files of their own
                yield part + self._news.after(seen, last=True)[0] + self._event(end)
                return
            silent = 0.0 if part else silent + _LOOK_SECONDS
            if not part and silent >= _SILENT_SECONDS:
                part, silent = b": \n\n", 0.0
            if part:
                yield part
            if ended:
                return
            ended = closing.wait(_LOOK_SECONDS)
            self._note_reader()
            place = max([place, *(line.end for line in lines)])
            lines, end = self._lines_and_end(place)
            part, seen = self._news.after(seen, last=ended)

    def _lines_and_end(self, start: int) -> tuple[list[Line], Line | None]:
        """The records behind a place, and the end of the run; a process may end without a word."""
        run = read(self._run)  # before its last records
        lines = self._lines(start)
        end = _end(lines)
        if end is None and run is not None and run.state == DEAD:
            end = Line("finish", json.dumps({"status": DEAD, "duration": run.seconds}), 0)
        return lines, end

    def _event(self, line: Line, *, with_id: bool = True) -> bytes:
        text = line.text
        if line.kind == "run":
            text = json.dumps(json.loads(text) | {"session": self._now().get("session")})
        return _event(_EVENTS[line.kind], text, line.end if with_id else None)

    def _facts(self) -> dict[str, Any]:
        return self._now() | ({"acts": self.acts} if self.acts else {})

    def _now(self) -> dict[str, Any]:
        return read_json(self._folder / "now.json") or {}

    def _lines(self, start: int) -> list[Line]:
        """The records behind a place; a line that is still being written is left out."""
        data = self._content(FOLDER, "records.jsonl", start=start)
        found = []
        for raw in data.splitlines(keepends=True):
            start += len(raw)
            try:
                text = raw.decode().strip()
                content = json.loads(text) if raw.endswith(b"\n") else None
            except ValueError:
                continue
            if isinstance(content, dict) and content.get("type") in _EVENTS:
                found.append(Line(content["type"], text, start))
        return found

    def _content(self, *names: str, start: int = 0) -> bytes:
        """A file of the run from a place on; nothing if it is missing."""
        try:
            with open_own(inside(self._run, *names)) as stream:
                stream.seek(start)
                return stream.read()
        except OSError:
            return b""

    def _required(self, what: str, *names: str) -> bytes:
        body = self._content(*names)
        if not body:
            raise Refused(HTTPStatus.NOT_FOUND, f"this run has no {what}")
        return body

    def _series(self, request: Request) -> dict[str, Any]:
        files = StepFiles.read(self._run)
        wanted = request.query.get("name")
        if not wanted:
            return {"names": files.names, "clock": _clock(files)}
        for name in wanted:
            if name not in files.names:
                raise Refused(HTTPStatus.NOT_FOUND, f"there is no curve {name:.80}")
        points = min(_MOST_POINTS, int(request.number("points", POINTS)))
        first, last = request.number("from", -math.inf), request.number("to", math.inf)
        if (first, last) == (-math.inf, math.inf):
            return {"series": [_whole(files, name, points) for name in wanted]}
        # The steps of the files count from 1, those of the page from 0.
        parts = {name: files.pieces(name, points, first + 1, last + 1) for name in wanted}
        return {"series": [_curve(name, pieces) for name, pieces in parts.items()]}


class _News:
    """What of a run changes, apart from its records. It is read once for all readers of the page.

    A reader is a place among the newest events. One that has fallen too far behind has to come
    again, as after a lost connection.

    Args:
        run: The folder of the run.
        facts: Reads what is true now.
    """

    def __init__(self, run: Path, facts: Callable[[], dict[str, Any]]) -> None:
        self._run = run
        self._facts = facts
        self._lock = threading.Lock()
        self._looked = -math.inf
        self._newest: dict[str, bytes] = {}
        self._events: deque[bytes] = deque(maxlen=_EVENTS_KEPT)
        self._count = 0
        self._media_index = str(run / _MEDIA / "index.json")
        self._media = mark(self._media_index)
        self._places = _sizes(StepFiles.read(run))

    def join(self) -> tuple[bytes, int]:
        """The events that tell a new reader what is true now, and its place."""
        with self._lock:
            self._look()
            return b"".join(self._newest.values()), self._count

    def after(self, place: int, *, last: bool = False) -> tuple[bytes, int]:
        """The events behind a place, and the place behind them.

        Args:
            place: Where the reader is.
            last: Whether the reader does not come again.

        Raises:
            Refused: The reader has missed events that are no longer kept.
        """
        with self._lock:
            self._look(again=last)
            missed = self._count - place
            if missed > len(self._events):
                raise Refused(HTTPStatus.GONE, "the reader was too slow")
            return b"".join(islice(self._events, len(self._events) - missed, None)), self._count

    def _look(self, *, again: bool = False) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS / 2 and not again:
            return
        self._looked = now
        for event in self._changes():
            self._events.append(event)
            self._count += 1

    def _changes(self) -> Iterator[bytes]:
        facts = self._facts()
        told = {name: facts[name] for name in (*_FACTS, "acts") if name in facts}
        told["drawing"] = {"version": facts.get("drawing") or 0}
        for name, fact in told.items():
            event = _event(name, json.dumps(fact))
            if self._newest.get(name) != event:
                self._newest[name] = event
                yield event
        if self._media != (media := mark(self._media_index)):
            self._media = media
            yield _event("media", "{}")
        files = StepFiles.read(self._run)
        series = []
        for name, size in _sizes(files).items():
            before = self._places.get(name, 0)
            # A curve that was thinned has fewer points than before, and none that are new.
            if size > before:
                series.append(_curve(name, files.points_from(name, before, _POINTS_OF_NEWS)))
            self._places[name] = size
        if series:
            yield _event("steps", json.dumps({"series": series, "clock": _clock(files, last=True)}))


def _sizes(files: StepFiles) -> dict[str, int]:
    return {name: files.size(name) for name in files.names}


def _event(kind: str, data: str, number: int | None = None) -> bytes:
    """One server-sent event; the data are JSON on one line."""
    label = "" if number is None else f"id: {number}\n"
    return f"event: {kind}\n{label}data: {data}\n\n".encode("utf-8", "backslashreplace")


def _newest(lines: Sequence[Line], kind: str) -> Line | None:
    return next((line for line in reversed(lines) if line.kind == kind), None)


def _end(lines: Sequence[Line]) -> Line | None:
    """The end of the run; None if it goes on, also if it was started again in its folder."""
    last = next((line for line in reversed(lines) if line.kind in ("run", "finish")), None)
    return last if last is not None and last.kind == "finish" else None


def _whole(files: StepFiles, name: str, points: int) -> dict[str, Any]:
    """A whole curve, with its last value."""
    size = files.size(name)
    # A piece with a range becomes two points.
    made = _curve(name, files.pieces(name, points if size <= points else (points - 1) // 2))
    end = _curve(name, files.points_from(name, size - 1, 1))
    if end["steps"] and (not made["steps"] or made["steps"][-1] < end["steps"][-1]):
        made["steps"] += end["steps"]
        made["values"] += end["values"]
    return made


def _curve(name: str, pieces: Pieces) -> dict[str, Any]:
    """A curve as points with rising steps from 0: two of a piece that has a range."""
    steps: list[float] = []
    values: list[float | str] = []
    at = pieces.steps
    quarter = (at[-1] - at[0]) / max(1, len(at) - 1) / 4 if at else 0.0
    rows = zip(at, pieces.low, pieces.high, pieces.mean, pieces.broken, strict=True)
    for step, low, high, mean, broken in rows:
        if low < high:
            steps += [step - 1 - quarter, step - 1 + quarter]
            values += [low, high]
        else:
            steps.append(step - 1)
            values.append("nan" if math.isnan(mean) else mean)
        if broken and low < high:
            steps.append(step - 1 + 1.5 * quarter)
            values.append("nan")
    whole = [int(step) if float(step).is_integer() else round(step, 3) for step in steps]
    return {"name": name, "steps": whole, "values": values}


def _clock(files: StepFiles, *, last: bool = False) -> dict[str, list[float]]:
    """Steps, and the seconds of the run at which they were recorded."""
    line = files.seconds()
    if not line:
        return {"steps": [], "seconds": []}
    every = max(1, -(-len(line.at) // _MOMENTS))
    places = range(len(line.at) - 1, 0, -every)[: 1 if last else None][::-1]
    return {
        "steps": [line.at[place] - 1 for place in places],
        "seconds": [line.values[place] - line.values[0] for place in places],
    }


def _media_answer(run: Path, request: Request) -> Answer:
    """The answer to a request for media.

    Raises:
        Refused: There is nothing of that name.
    """
    entries = _media_entries(run)
    name = request.text("name")
    if request.path == "/image.png":
        step = request.text("step")
        for record in entries.get(("image", name), {}).get("records", []):
            if str(record.get("step")) == step:
                return Answer(_media_content(run, record), "image/png")
        raise Refused(HTTPStatus.NOT_FOUND, f"there is no image {name:.80} at step {step:.20}")
    kind = request.text("kind")
    if not kind:
        return in_json({"entries": [_listed_media(entry) for entry in entries.values()]})
    if (kind, name) not in entries:
        raise Refused(HTTPStatus.NOT_FOUND, f"there is no {kind:.40} {name:.80}")
    entry = entries[kind, name]
    if kind == "histogram":
        return in_json({"records": json.loads(_media_content(run, entry))})
    return in_json({"records": [_media_record(run, kind, name, one) for one in entry["records"]]})


def _media_entries(run: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """What the index lists, by kind and name; an index that is damaged lists nothing."""
    index = read_json(run / _MEDIA / "index.json") or {}
    try:
        return {
            (str(one["kind"]), str(one["name"])): one for one in index["media"] if one["records"]
        }
    except (KeyError, TypeError):
        return {}


def _listed_media(entry: dict[str, Any]) -> dict[str, Any]:
    records = entry["records"]
    newest = records[-1].get("step")
    return {"kind": entry["kind"], "name": entry["name"], "count": len(records), "step": newest}


def _media_record(run: Path, kind: str, name: str, record: dict[str, Any]) -> dict[str, Any]:
    """One record; an image has an address instead of its pixels."""
    facts = {key: value for key, value in record.items() if key != "file"}
    if kind == "image":
        return facts | {"src": "image.png?" + urlencode({"name": name, "step": record["step"]})}
    content = _media_content(run, record).decode("utf-8", "replace")
    return facts | ({"text": content} if kind == "text" else json.loads(content))


def _media_content(run: Path, entry: dict[str, Any]) -> bytes:
    """The file of an entry, which must lie in the folder of media."""
    try:
        with open_own(inside(run / _MEDIA, str(entry.get("file")))) as stream:
            return stream.read()
    except OSError:
        raise Refused(HTTPStatus.NOT_FOUND, "the file is gone, or was never written") from None
