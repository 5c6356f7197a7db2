"""A web server on this machine that misbehaves on demand, for testing downloads for real.

with Server() as server:
    server.put("/a.zip", data, cuts=[1000])
    fetch(server.url("/a.zip"))
    assert server.requests[0].headers["Range"] == "bytes=-65536"
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import threading
import time
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self


@dataclass
class Resource:
    """What one path answers, and how badly.

    Attributes:
        content: The body.
        ranges: Whether `Range` is honoured.
        etag: Sent as `ETag` and compared with `If-Range`; empty for none. Made from the content
            when left as None.
        modified: Sent as `Last-Modified`; empty for none.
        status: What a whole answer says.
        kind: Its `Content-Type`.
        sized: Whether `Content-Length` is sent; without it the end is the end of the connection.
        failures: (status, headers) of the next answers; each is used once, before all else.
        cuts: Offsets in the content where a connection is dropped, in the order of use; one is
            used up by the first answer that comes past it.
        stall: Offset where the first answer that comes to it stops sending, until whoever asked has
            gone; None for none.
        drip: (bytes, seconds): how much is sent between two pauses; None for all at once.
        location: Where to redirect to; empty for nowhere.
        hangs_up: Whether the connection is closed behind an answer, unannounced; announced it is
            where `sized` is False.
        before: Called before each answer with its number, from 0; it may change this resource.
    """

    content: bytes
    ranges: bool = True
    etag: str | None = None
    modified: str = ""
    status: int = 200
    kind: str = "application/zip"
    sized: bool = True
    failures: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    stall: int | None = None
    drip: tuple[int, float] | None = None
    location: str = ""
    hangs_up: bool = False
    before: Callable[[int], None] | None = None
    answers: int = 0

    def __post_init__(self) -> None:
        if self.etag is None:
            self.etag = f'"{sha256(self.content).hexdigest()[:16]}"'


@dataclass(frozen=True)
class Request:
    """What was asked, and how it was answered: `sent` bytes of a body that starts at `start`.

    The names of headers may be written in any case.
    """

    path: str
    headers: Message
    status: int
    start: int
    sent: int


class Server:
    """Serves :class:`Resource` values on 127.0.0.1; use it as a context manager.

    Args:
        certificate: A file with a key and a certificate, to speak TLS with; None for plain HTTP.

    Attributes:
        resources: Path -> what it answers; tests may change it at any time.
        connections: How many there were so far.
        requests: Every answer that ended, in the order they were asked for; see :meth:`settle`.
        sent: Bytes of all bodies so far, also of answers that have not ended.
    """

    def __init__(self, certificate: Path | None = None) -> None:
        self.resources: dict[str, Resource] = {}
        self.requests: list[Request] = []
        self.sent = 0
        self.connections = 0
        self._asked = 0
        self._under_way = 0
        self._numbers: list[int] = []
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self._scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._http.server_port

    def settle(self) -> None:
        """Wait until no answer is under way."""
        while True:
            with self.lock:
                if self._under_way == 0:
                    return
            time.sleep(0.001)

    @contextmanager
    def answering(self) -> Iterator[int]:
        """What lasts as long as an answer does: its number."""
        with self.lock:
            self._asked += 1
            self._under_way += 1
            number = self._asked
        try:
            yield number
        finally:
            with self.lock:
                self._under_way -= 1

    def record(self, number: int, request: Request) -> None:
        """Keep what was answered where the request came: threads end in an order of their own."""
        with self.lock:
            place = bisect(self._numbers, number)
            self._numbers.insert(place, number)
            self.requests.insert(place, request)

    def url(self, path: str) -> str:
        """The address of a path."""
        return f"{self._scheme}://127.0.0.1:{self.port}{path}"

    def put(self, path: str, content: bytes, **behaviour: object) -> Resource:
        """Serve some bytes; ``behaviour`` are attributes of :class:`Resource`."""
        resource = Resource(content, **behaviour)  # type: ignore[arg-type]
        self.resources[path] = resource
        return resource


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            with server.lock:
                server.connections += 1

        def do_GET(self) -> None:
            with server.answering() as self.number:
                self.get()

        def get(self) -> None:
            resource = server.resources.get(self.path)
            if resource is None:
                self.answer(404, {"Content-Type": "text/html"}, b"<html>no such file</html>", 0)
                return
            with server.lock:
                number = resource.answers
                resource.answers += 1
                failure = resource.failures.pop(0) if resource.failures else None
            if resource.before:
                resource.before(number)
            if failure:
                self.answer(failure[0], failure[1], b"<html>not now</html>", 0)
            elif resource.location:
                self.answer(302, {"Location": resource.location}, b"", 0)
            else:
                self.serve(resource)

        def serve(self, resource: Resource) -> None:
            headers = {"Content-Type": resource.kind}
            if resource.etag:
                headers["ETag"] = resource.etag
            if resource.modified:
                headers["Last-Modified"] = resource.modified
            asked = self.span(resource)
            if asked is None:
                self.answer(resource.status, headers, resource.content, 0, resource)
                return
            start, stop = asked
            total = len(resource.content)
            if start >= stop:
                self.answer(416, {**headers, "Content-Range": f"bytes */{total}"}, b"", 0)
                return
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{total}"
            self.answer(206, headers, resource.content[start:stop], start, resource)

        def span(self, resource: Resource) -> tuple[int, int] | None:
            """What part of the content is asked for and may be sent alone."""
            match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            fresh = self.headers.get("If-Range") in (None, resource.etag, resource.modified)
            if match is None or not resource.ranges or not fresh or resource.status != 200:
                return None
            first, last = match.groups()
            total = len(resource.content)
            if not first:
                return max(0, total - int(last)), total
            return int(first), min(total, int(last) + 1 if last else total)

        def answer(
            self,
            status: int,
            headers: dict[str, str],
            body: bytes,
            start: int,
            resource: Resource | None = None,
        ) -> None:
            sent = 0
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if resource and resource.hangs_up:
                    self.close_connection = True
                if resource and not resource.sized:
                    self.send_header("Connection", "close")
                else:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                for piece in self.pieces(resource, body, start):
                    self.wfile.write(piece)
                    sent += len(piece)
                    with server.lock:
                        server.sent += len(piece)
            except OSError:
                self.close_connection = True
            server.record(self.number, Request(self.path, self.headers, status, start, sent))

        def pieces(self, resource: Resource | None, body: bytes, start: int) -> Iterator[bytes]:
            """The body bit by bit, up to where the resource says it breaks off."""
            if resource is None:
                yield body
                return
            end = start + len(body)
            with server.lock:
                stalls = resource.stall is not None and start <= resource.stall < end
                stop = resource.stall if stalls else None
                if stalls:
                    resource.stall = None
                cut = next((c for c in resource.cuts if start <= c < end), None)
                if not stalls and cut is not None:
                    resource.cuts.remove(cut)
                    stop = cut
            step, pause = resource.drip or (1 << 20, 0.0)
            limit = end if stop is None else stop
            for at in range(start, limit, step):
                yield body[at - start : min(at + step, limit) - start]
                if pause:
                    server.closing.wait(pause)
            if stalls:
                while not server.closing.is_set() and not self.is_left():
                    pass
            if stop is not None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

        def is_left(self) -> bool:
            """Whether whoever asked has gone; looks for a moment."""
            ended = bool(select.select([self.connection], [], [], 0.01)[0])
            return ended and not self.connection.recv(1, socket.MSG_PEEK)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: what was asked is in `Server.requests`."""

    return Handler
