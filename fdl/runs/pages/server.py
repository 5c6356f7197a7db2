"""A server for the page of many runs: it listens on this machine only, and only reads."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, urlsplit

from fdl.base.errors import FdlError
from fdl.base.masking import KNOWN
from fdl.base.own_files import open_own
from fdl.runs.pages.curves import AXES, Request, packed
from fdl.runs.pages.document import csp, served
from fdl.runs.run import REPORT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fdl.runs.pages.catalog import Catalog, Entry
    from fdl.runs.pages.curves import Axis

ADDRESS = "127.0.0.1"
_JSON = "application/json; charset=utf-8"
_HTML = "text/html; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
_BINARY = "application/octet-stream"
_MOST_PIECES = 10_000
_PATIENCE_SECONDS = 0.5
"""How long a page waits for rows of runs that are being read."""
_SAFE = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)


class Answer(NamedTuple):
    """What a request is answered with."""

    body: bytes
    kind: str
    policy: str = "default-src 'none'"
    status: HTTPStatus = HTTPStatus.OK


class Refused(Exception):  # noqa: N818 - a regular answer, not an error of the server
    """A request that is answered with a status and one line of text."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.answer = Answer(f"{text}\n".encode(), _TEXT, status=status)


class PageServer(ThreadingHTTPServer):
    """Serves a catalog until it is closed.

    Args:
        catalog: The runs.
        title: What the page is called.
        port: The port; 0 takes a free one.

    Raises:
        FdlError: The port cannot be used.
    """

    daemon_threads = True

    def __init__(self, catalog: Catalog, title: str, port: int = 0) -> None:
        self.catalog = catalog
        self.title = title
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as problem:
            reason = getattr(problem, "strerror", None) or str(problem)
            raise FdlError(
                f"port {port} of this machine cannot be used: {reason}",
                hint="fdl runs ui takes a free port without --port",
            ) from None

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{ADDRESS}:{self.server_port}/"

    @property
    def hosts(self) -> set[str]:
        """The names under which a browser of this machine reaches the server."""
        return {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}

    def answer(self, path: str, query: Mapping[str, str]) -> Answer:
        """The answer to a request that was let in.

        Raises:
            Refused: The request cannot be answered.
        """
        if path == "/":
            return Answer(served(self.title).encode(), _HTML, csp(served=True))
        if path == "/runs":
            since = int(_number(query, "since", -1))
            return _json(self.catalog.changes(since, _PATIENCE_SECONDS))
        if path == "/curves":
            request = _request(query)
            entries = self.catalog.by_ids(_ids(query.get("runs", "")))
            return Answer(packed(entries, request, band=query.get("band") == "1"), _BINARY)
        word, _, name = path.strip("/").partition("/")
        if word.isdecimal() and name == REPORT:
            return _report(self.catalog.by_ids({int(word[:9])}))
        raise Refused(HTTPStatus.NOT_FOUND, "there is nothing at this address")

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a browser may close a connection at any time."""


class _Handler(BaseHTTPRequestHandler):
    """Lets in requests of this machine's own pages, and answers them."""

    timeout = 60
    server: PageServer

    def do_GET(self) -> None:
        """Answer a request."""
        try:
            self._admit()
            address = urlsplit(self.path)
            query = parse_qs(address.query, keep_blank_values=True, max_num_fields=20)
            answer = self.server.answer(address.path, {key: one[-1] for key, one in query.items()})
        except Refused as refusal:
            answer = refusal.answer
        except (ValueError, OverflowError):
            answer = Refused(HTTPStatus.BAD_REQUEST, "the address cannot be read").answer
        with suppress(ConnectionError):
            self._send(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal is the user's."""

    def _admit(self) -> None:
        """Refuse what a foreign page asks.

        A foreign page can make its own name point to this machine (DNS rebinding). Its requests
        then have that name as Host. A request across origins names its origin.
        """
        hosts = self.headers.get_all("Host", [])
        if len(hosts) > 1 or not self.path.startswith("/"):
            raise Refused(HTTPStatus.BAD_REQUEST, "name one host, in the header Host only")
        host = hosts[0] if hosts else ""
        if host not in self.server.hosts:
            raise Refused(HTTPStatus.FORBIDDEN, "this page is for browsers of its own machine")
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{host}":
            raise Refused(HTTPStatus.BAD_REQUEST, "another site may not read this page")

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in _SAFE:
            self.send_header(name, value)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Security-Policy", answer.policy)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)


def _json(content: object) -> Answer:
    return Answer(KNOWN.text(json.dumps(content, ensure_ascii=False)).encode(), _JSON)


def _report(found: Sequence[Entry]) -> Answer:
    """A run's report. It may come from anywhere, so it must not read what this server offers."""
    try:
        with open_own(found[0].path / REPORT) as stream:
            body = stream.read()
    except (IndexError, OSError):
        raise Refused(HTTPStatus.NOT_FOUND, "this run has no report") from None
    return Answer(body, _HTML, "sandbox allow-scripts allow-downloads")


def _request(query: Mapping[str, str]) -> Request:
    axis = query.get("axis", "step")
    if axis not in AXES:
        raise Refused(HTTPStatus.BAD_REQUEST, f"axis is one of {', '.join(AXES)}")
    known: dict[str, Axis] = {"step": "step", "epoch": "epoch", "time": "time", "wall": "wall"}
    return Request(
        query.get("metric", ""),
        known[axis],
        max(2, min(_MOST_PIECES, int(_number(query, "count", 1000)))),
        _number(query, "first", -math.inf),
        _number(query, "last", math.inf),
    )


def _number(query: Mapping[str, str], name: str, default: float) -> float:
    if name not in query:
        return default
    value = float(query[name])
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
