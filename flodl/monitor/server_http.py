"""A small HTTP server part for the live page: one request per connection, answered and closed."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qs, unquote, urlsplit

LONGEST_HEAD = 16 * 1024
"""Largest size in bytes of a request line with its headers."""

LONGEST_BODY = 4096
TOKEN_HEADER = "x-flodl-token"

_HEADERS = (
    ("Connection", "close"),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


class Refused(Exception):  # noqa: N818 - a regular answer, not an error of the server
    """A request that is answered with `status` and one line of text."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True)
class Request:
    """A GET or POST request."""

    path: str
    """Decoded; begins with a slash."""
    query: Mapping[str, list[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    is_post: bool = False
    body: bytes = b""

    @property
    def length(self) -> int:
        """Size of the body in bytes; only a POST has one.

        Raises:
            Refused: It is too large, or not stated as Content-Length.
        """
        text = self.headers.get("content-length", "0")
        if not (text.isascii() and text.isdigit()) or "transfer-encoding" in self.headers:
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "state the size as Content-Length")
        if int(text[:12]) > LONGEST_BODY:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request is too long")
        return int(text) if self.is_post else 0

    def whole_number(self, name: str) -> int | None:
        """Return a parameter of the query as a number, None if it is absent.

        Raises:
            Refused: The parameter is not a whole number.
        """
        given = self.query.get(name)
        if not given:
            return None
        try:
            return int(given[-1][:20])
        except ValueError:
            text = f"{name}={given[-1]:.40}: not a whole number"
            raise Refused(HTTPStatus.BAD_REQUEST, text) from None


def parse_request(head: bytes) -> Request:
    """Parse the head of a request, up to its empty line.

    Raises:
        Refused: It is not HTTP, neither GET nor POST, or another site's page asks.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise Refused(HTTPStatus.BAD_REQUEST, "not an HTTP/1.1 request")
    if words[0] not in ("GET", "POST"):
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and POST are answered here")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon and "host" == name.strip().lower() in headers:
            raise Refused(HTTPStatus.BAD_REQUEST, "name one host")
        if colon:
            headers[name.strip().lower()] = value.strip()
    if not words[1].startswith("/"):
        raise Refused(HTTPStatus.BAD_REQUEST, "name the host in the header Host only")
    origin, named = headers.get("origin"), headers.get("host", "")
    if origin is not None and origin != f"http://{named}":
        raise Refused(HTTPStatus.BAD_REQUEST, f"Origin: {origin:.80} is not this page")
    try:
        target = urlsplit(words[1])
        query = parse_qs(target.query, keep_blank_values=True, max_num_fields=1000)
    except ValueError:
        raise Refused(HTTPStatus.BAD_REQUEST, "the address cannot be read") from None
    return Request(unquote(target.path) or "/", query, headers, words[0] == "POST")


def is_loopback(host: str) -> bool:
    """Whether a name or address always means this machine."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Admission:
    """Decides who may read: clients with the token; without a token, requests to this machine.

    A foreign page can make its own name point to this machine (DNS rebinding) and could then read
    the run. But its requests have that name in their Host header.
    """

    token: str = ""

    def admit(self, request: Request) -> str:
        """Return the requested path, without the token.

        Raises:
            Refused: The token is wrong or missing, or the Host header names another machine.
        """
        if self.token:
            _, given, *rest = request.path.split("/", 2)
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                text = "wrong or missing token; open the whole address that the training printed"
                raise Refused(HTTPStatus.FORBIDDEN, text)
            if not rest:
                raise Refused(HTTPStatus.NOT_FOUND, "the address ends with a slash")
            return "/" + rest[0]
        host = request.headers.get("host", "")
        if not is_loopback(_without_port(host)):
            text = f"Host: {host:.80} is not this machine; open http://127.0.0.1 or localhost"
            raise Refused(HTTPStatus.FORBIDDEN, text)
        return request.path

    def admit_act(self, request: Request, host: str) -> None:
        """Check a request that acts on the training.

        It needs the token in a header, where no other page can put it. Host must name this page,
        and an Origin must be there: a foreign page has its own name in them.

        Args:
            request: A POST, already admitted.
            host: The host that the page listens on.

        Raises:
            Refused: One of them is missing or wrong.
        """
        given = request.headers.get(TOKEN_HEADER, "")
        if not self.token or not hmac.compare_digest(given.encode(), self.token.encode()):
            raise Refused(HTTPStatus.FORBIDDEN, f"wrong or missing token in {TOKEN_HEADER}")
        named = request.headers.get("host", "")
        name = _without_port(named)
        if not (is_loopback(name) or _is_address(name) or name in (host, socket.gethostname())):
            raise Refused(HTTPStatus.FORBIDDEN, f"Host: {named:.80} is not this page")
        if "origin" not in request.headers:
            raise Refused(HTTPStatus.FORBIDDEN, "Origin is missing; acts come from the page itself")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "an act is application/json")


def _without_port(host: str) -> str:
    return host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host


def _is_address(name: str) -> bool:
    """Whether it is an address and not a name, which a foreign page could let point anywhere."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def response(body: bytes, kind: str, *, csp: str = "default-src 'none'") -> bytes:
    """Return a complete HTTP response.

    Args:
        body: The content.
        kind: Its media type.
        csp: Content security policy.
    """
    return _answer(HTTPStatus.OK, body, kind, csp)


def refusal(refused: Refused) -> bytes:
    """Return the response for a refused request, with the reason."""
    body = f"{refused.status.value} {refused.status.phrase}: {refused.text}\n"
    plain = "text/plain; charset=utf-8"
    return _answer(refused.status, body.encode(), plain, "default-src 'none'")


def stream_head() -> bytes:
    """Return the head of an event stream, with the delay before a browser reconnects."""
    return _head(HTTPStatus.OK, (("Content-Type", "text/event-stream"),)) + b"retry: 1000\n\n"


def _answer(status: HTTPStatus, body: bytes, kind: str, csp: str) -> bytes:
    extra = (
        ("Content-Type", kind),
        ("Content-Length", str(len(body))),
        ("Content-Security-Policy", csp),
    )
    return _head(status, extra) + body


def _head(status: HTTPStatus, extra: tuple[tuple[str, str], ...]) -> bytes:
    lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
    lines += [f"{name}: {value}" for name, value in (*extra, *_HEADERS)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
