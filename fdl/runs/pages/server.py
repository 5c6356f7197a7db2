"""The server of the pages: who may read, how requests are answered, and streams of events.

It is the same for the page of one run and for that of many. It reads files, and a training that is
watched has it in a process of its own.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import math
import os
import re
import secrets
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from fdl.base.cache_folder import cache_folder
from fdl.base.errors import FdlError
from fdl.base.masking import KNOWN
from fdl.base.own_files import put_own

if TYPE_CHECKING:
    from collections.abc import Mapping

ADDRESS = "127.0.0.1"
TOKEN_HEADER = "X-Flodl-Token"
_TOKEN_FILE = "page-token"
"""One token per user, in a file that only this user can read."""
MOST_CONNECTIONS = 1000
LONGEST_BODY = 4096
_LONGEST_NUMBER = 40
STALLED_SECONDS = 30.0
"""A client that neither sends nor reads for this time is cut off."""
_GOODBYE_SECONDS = 0.5

_JSON = "application/json; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
_SAFE = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)


class Request(NamedTuple):
    """A request that was let in.

    Attributes:
        path: Decoded, without the token; begins with a slash.
        query: All values of each parameter.
        last_id: The last event that a reader of a stream has.
        body: What a POST sends; None for a GET.
    """

    path: str
    query: Mapping[str, list[str]]
    last_id: str = ""
    body: bytes | None = None

    def text(self, name: str, default: str = "") -> str:
        """The last value of a parameter."""
        return self.query.get(name, [default])[-1]

    def number(self, name: str, default: float) -> float:
        """A parameter as a number, or a default.

        Raises:
            Refused: It is not a number.
        """
        if name not in self.query:
            return default
        with suppress(ValueError):
            value = float(self.text(name)[:_LONGEST_NUMBER])
            if not math.isnan(value):
                return value
        text = f"{name}={self.text(name):.40}: not a number"
        raise Refused(HTTPStatus.BAD_REQUEST, text)


class Answer(NamedTuple):
    """What a request is answered with."""

    body: bytes
    kind: str = _JSON
    policy: str = "default-src 'none'"
    status: HTTPStatus = HTTPStatus.OK


class Refused(Exception):  # noqa: N818 - a regular answer, not an error of the server
    """A request that is answered with a status and one line of text."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        body = f"{status.value} {status.phrase}: {text}\n"
        self.answer = Answer(body.encode("utf-8", "replace"), _TEXT, status=status)


def in_json(content: object) -> Answer:
    """An answer in JSON, without secrets."""
    return masked(json.dumps(content, ensure_ascii=False))


def masked(text: str) -> Answer:
    """An answer that is JSON already, without secrets."""
    return Answer(KNOWN.text(text).encode("utf-8", "replace"))


class Pages(Protocol):
    """What a server serves."""

    def answer(self, request: Request, closing: threading.Event) -> Answer | Iterator[bytes]:
        """The answer to a request: a whole one, or the parts of a stream until it is closing.

        Raises:
            Refused: The request cannot be answered.
        """


class PageServer(ThreadingHTTPServer):
    """Serves pages until it is closed. Each connection has a thread; their number is limited.

    Args:
        pages: What it serves.
        port: The port; 0 takes a free one.
        host: The address to listen on.
        token: Begins every path, so that only those can read who know the address. Without one,
            every user and every program of this machine can read, and only they.
        acts: Whether pages may ask for something with POST.

    Raises:
        FdlError: The port cannot be used.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(
        self,
        pages: Pages,
        port: int = 0,
        *,
        host: str = ADDRESS,
        token: str = "",
        acts: bool = False,
    ) -> None:
        self.pages = pages
        self.host = host
        self.token = token
        self.acts = acts
        self.closing = threading.Event()
        self._open = 0
        self._changed = threading.Condition()
        try:
            if not 0 <= port <= 65535:  # the system would reduce it modulo 65536
                raise OverflowError("ports are 0 to 65535")
            found = socket.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            self.address_family, *_, address = found[0]
            super().__init__(address[:2], _Handler)  # type: ignore[arg-type]
        except (OSError, OverflowError, UnicodeError) as problem:
            reason = getattr(problem, "strerror", None) or str(problem)
            raise FdlError(
                f"port {port} of this machine cannot be used: {reason}",
                hint="fdl runs ui takes a free port without --port",
            ) from None

    def server_bind(self) -> None:
        """Bind without asking the network for the name of this machine."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, self.server_address[1]

    @property
    def url(self) -> str:
        """The address of the page."""
        name = self.host
        if name in ("", "0.0.0.0", "::"):  # noqa: S104 - chosen by the user, protected by the token
            name = socket.gethostname() or ADDRESS
        name = f"[{name}]" if ":" in name else name
        return f"http://{name}:{self.server_port}/" + (f"{self.token}/" if self.token else "")

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, or hang up if there are too many."""
        if self._open >= MOST_CONNECTIONS:
            self.shutdown_request(request)
            return
        self._count(1)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection, and make space for another one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._count(-1)

    def server_close(self) -> None:
        """Free the port and end all streams; readers get a moment to take the last events."""
        super().server_close()
        self.closing.set()
        with self._changed:
            self._changed.wait_for(lambda: not self._open, _GOODBYE_SECONDS)

    def _count(self, more: int) -> None:
        with self._changed:
            self._open += more
            self._changed.notify_all()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a browser may close a connection at any time."""


class _Handler(BaseHTTPRequestHandler):
    """Lets in requests that may read, and answers them."""

    timeout = STALLED_SECONDS
    server: PageServer

    def do_GET(self) -> None:
        """Answer a request."""
        try:
            answer = self.server.pages.answer(self._admitted(), self.server.closing)
        except Refused as refusal:
            answer = refusal.answer
            self._drop_body()
        except (ValueError, OverflowError):
            answer = Refused(HTTPStatus.BAD_REQUEST, "the address cannot be read").answer
        except (KeyError, TypeError, AttributeError):
            text = "the files of the run are damaged, or of another version"
            answer = Refused(HTTPStatus.INTERNAL_SERVER_ERROR, text).answer
        with suppress(OSError):
            if isinstance(answer, Answer):
                self._send(answer)
            else:
                self._stream(answer)

    do_POST = do_GET  # noqa: N815 - the name that the library calls

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal is the user's."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is not a request that is answered here."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "only GET and POST are answered here"
        with suppress(OSError):
            self._send(Refused(HTTPStatus(code), message or explain or "not HTTP").answer)

    def _admitted(self) -> Request:
        """The request, if its sender may read.

        A foreign page can make its own name point to this machine (DNS rebinding). Its requests
        then have that name as Host. A request across origins names its origin.
        """
        hosts = self.headers.get_all("Host", [])
        if len(hosts) > 1 or not self.path.startswith("/"):
            raise Refused(HTTPStatus.BAD_REQUEST, "name one host, in the header Host only")
        host = hosts[0] if hosts else ""
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{host}":
            raise Refused(HTTPStatus.BAD_REQUEST, f"Origin: {origin:.80} is not this page")
        length = self._length()
        target = urlsplit(self.path)
        path = self._path(unquote(target.path) or "/")
        name = _without_port(host)
        if is_loopback(self.server.host) and not is_loopback(name):
            text = f"Host: {host:.80} is not this machine; open http://127.0.0.1 or localhost"
            raise Refused(HTTPStatus.FORBIDDEN, text)
        body = None
        if self.command == "POST":
            self._admit_act(path, host, origin)
            body = self.rfile.read(length)
        query = parse_qs(target.query, keep_blank_values=True, max_num_fields=1000)
        return Request(path, query, self.headers.get("Last-Event-ID", ""), body)

    def _length(self) -> int:
        text = self.headers.get("Content-Length", "0")
        if not (text.isascii() and text.isdigit()) or "Transfer-Encoding" in self.headers:
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "state the size as Content-Length")
        if int(text[:12]) > LONGEST_BODY:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request is too long")
        return int(text)

    def _drop_body(self) -> None:
        """Take what a refused request sends, or the system would discard the answer with it."""
        self.connection.settimeout(1)
        with suppress(OSError, ValueError):
            self.rfile.read(min(int(self.headers.get("Content-Length", "0")), 1 << 16))

    def _path(self, path: str) -> str:
        """The path without the token."""
        if not self.server.token:
            return path
        _, given, *rest = path.split("/", 2)
        if not _same(given, self.server.token):
            text = "wrong or missing token; open the whole address that was printed"
            raise Refused(HTTPStatus.FORBIDDEN, text)
        if not rest:
            raise Refused(HTTPStatus.NOT_FOUND, "the address ends with a slash")
        return f"/{rest[0]}"

    def _admit_act(self, path: str, host: str, origin: str | None) -> None:
        """Check a request that acts on a training.

        It needs the token in a header, where no other page can put it. Host must name this page,
        and an Origin must be there: a foreign page has its own name in them.
        """
        if not self.server.acts or path != "/api/act":
            text = "nothing is posted here; .live(buttons=True) lets readers act on a training"
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, text)
        if not self.server.token or not _same(
            self.headers.get(TOKEN_HEADER, ""), self.server.token
        ):
            raise Refused(HTTPStatus.FORBIDDEN, f"wrong or missing token in {TOKEN_HEADER}")
        name = _without_port(host)
        own = (self.server.host, socket.gethostname())
        if not (is_loopback(name) or _address(name) or name in own):
            raise Refused(HTTPStatus.FORBIDDEN, f"Host: {host:.80} is not this page")
        if origin is None:
            raise Refused(HTTPStatus.FORBIDDEN, "Origin is missing; acts come from the page itself")
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "an act is application/json")

    def _send(self, answer: Answer) -> None:
        length = ("Content-Length", str(len(answer.body)))
        policy = ("Content-Security-Policy", answer.policy)
        self._head(answer.status, ("Content-Type", answer.kind), length, policy)
        self.wfile.write(answer.body)

    def _stream(self, parts: Iterator[bytes]) -> None:
        self._head(HTTPStatus.OK, ("Content-Type", "text/event-stream"))
        with suppress(Refused):
            for part in parts:
                self.wfile.write(part)

    def _head(self, status: HTTPStatus, *fields: tuple[str, str]) -> None:
        self.close_connection = True
        self.request_version = self.protocol_version  # also answer what is not HTTP in HTTP
        self.send_response(status)
        for name, value in (*fields, *_SAFE):
            self.send_header(name, value)
        self.end_headers()


def is_loopback(host: str) -> bool:
    """Whether a name or address always means this machine."""
    address = _address(host)
    return address.is_loopback if address else host.lower().rstrip(".") == "localhost"


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address; None for a name, which a foreign page could let point anywhere."""
    try:
        return ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _without_port(host: str) -> str:
    return host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host


def page_token() -> str:
    """The token of this user; a new one if there is none, or if others could have read it.

    Where it cannot be kept, each call gives another token.
    """
    file = cache_folder() / _TOKEN_FILE
    with suppress(OSError, ValueError):
        if file.stat().st_mode & 0o077 == 0 or os.name == "nt":
            known = file.read_text(encoding="ascii").strip()
            if re.fullmatch(r"[\w-]{22,}", known):
                return known
    made = secrets.token_urlsafe(16)
    with suppress(OSError):
        put_own(file.parent, file, f"{made}\n".encode(), 0o600)
    return made
