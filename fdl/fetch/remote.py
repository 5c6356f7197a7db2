"""Asking a web server for an archive or a range of it; what its answers mean."""

from __future__ import annotations

import random
import re
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

import fdl
from fdl.fetch.failures import ChangedError, UnreachableError
from fdl.fetch.options import Options
from fdl.fetch.part import Version

_PASSING = (408, 425, 429, 500, 502, 503, 504)
"""Statuses that may be others a moment later."""

_OTHER = "the server has another file now"

_BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class TransientError(Exception):
    """A failure that may pass.

    Args:
        reason: What happened, for the message if it does not pass.
        after: The pause in seconds that the server asks for.
    """

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class Answer:
    """A good answer; its body has not been read yet.

    Attributes:
        start: Offset in the file where the body begins.
        whole: Whether the body is the whole file, as of servers that know no ranges.
        version: The state of the file.
    """

    def __init__(self, response: httpx.Response, start: int, whole: bool, version: Version) -> None:
        self.start = start
        self.whole = whole
        self.version = version
        self._response = response

    def blocks(self) -> Iterator[bytes]:
        """The body as it arrives.

        Raises:
            TransientError: It stalls or breaks off.
        """
        try:
            yield from self._response.iter_raw()
        except httpx.TransportError as error:
            raise TransientError(_reason(error)) from None


class Remote:
    """The connections to one or more servers; use it as a context manager.

    Proxies are those that httpx finds in the environment.

    Args:
        environ: Where the variables for certificates are looked up.
        options: Time-outs.
    """

    def __init__(self, environ: Mapping[str, str], options: Options) -> None:
        self._options = options
        self._sockets: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._client = httpx.Client(
            headers={"User-Agent": f"fdl/{fdl.__version__}", "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(options.stall_timeout, connect=options.connect_timeout),
            follow_redirects=True,
            verify=_certificates(environ),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()

    def hang_up(self) -> None:
        """Break all connections off, so that no thread waits for one any longer."""
        with self._guard:
            for connection in self._sockets:
                try:
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)
                except OSError:
                    # It was closed already.
                    continue
            self._sockets.clear()

    @contextmanager
    def get(self, url: str, span: str, known: Version | None = None) -> Iterator[Answer]:
        """Ask for a range of a file.

        Args:
            url: Its address.
            span: The range as ``Range`` spells it: ``-1024``, ``0-1023``.
            known: The state of the file that is wanted.

        Raises:
            TransientError: A failure that may pass.
            ChangedError: The server has another state of the file.
            UnreachableError: There is no archive at the address.
        """
        headers = {"Range": f"bytes={span}"}
        if known and known.validator:
            headers["If-Range"] = known.validator
        try:
            request = self._client.build_request(
                "GET", url, headers=headers, extensions={"trace": self._trace}
            )
            response = self._client.send(request, stream=True)
        except httpx.TransportError as error:
            raise _failure(url, error) from None
        except (httpx.TooManyRedirects, httpx.InvalidURL) as error:
            raise UnreachableError(f"cannot fetch {shown(url)}: {error}") from None
        try:
            yield _read_answer(response, url, known)
        finally:
            response.close()

    def _trace(self, event: str, details: Mapping[str, Any]) -> None:
        if event != "connection.connect_tcp.complete":
            return
        connection = details["return_value"].get_extra_info("socket")
        with self._guard:
            # What was closed since has no descriptor any more.
            self._sockets = {one for one in self._sockets if one.fileno() >= 0} | {connection}


def shown(url: str) -> str:
    """An address as messages show it: without password and without query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the address"
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="", fragment="").geturl()


def backoff(failures: int, after: float, options: Options) -> float:
    """Seconds to wait after so many failures in a row.

    Args:
        failures: How many there were, from 1.
        after: What the server asks for.
        options: The limits.
    """
    pause = options.backoff * 2 ** (failures - 1) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
    return float(min(max(pause, after), options.longest_backoff))


def _read_answer(response: httpx.Response, url: str, known: Version | None) -> Answer:
    status, headers = response.status_code, response.headers
    if status in _PASSING:
        raise TransientError(_status(status), _retry_after(headers.get("Retry-After", "")))
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and known:
        raise ChangedError(_OTHER)
    if status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        raise UnreachableError(
            f"{shown(url)} answers {_status(status)}",
            hint="check the address; what it names may have been moved or never existed"
            if status == HTTPStatus.NOT_FOUND
            else "",
        )
    if headers.get("Content-Type", "").startswith("text/html"):
        raise UnreachableError(
            f"{shown(url)} answers with a web page and not with an archive",
            hint="a proxy or a log-in page may stand between; open the address in a browser",
        )
    etag, modified = headers.get("ETag", ""), headers.get("Last-Modified", "")
    if status == HTTPStatus.OK:
        length = headers.get("Content-Length", "")
        version = Version(etag, modified, int(length) if length.isdecimal() else None)
        return Answer(response, 0, True, _same(version, known))
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", headers.get("Content-Range", ""))
    if match is None:
        raise UnreachableError(f"{shown(url)} answers with a range that makes no sense")
    version = Version(etag, modified, int(match[3]))
    return Answer(response, int(match[1]), False, _same(version, known))


def _same(seen: Version, known: Version | None) -> Version:
    if known and known.is_other(seen):
        raise ChangedError(_OTHER)
    return seen


def _failure(url: str, error: httpx.TransportError) -> TransientError | UnreachableError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return UnreachableError(
                f"{shown(url)} has a certificate that cannot be verified: {cause.verify_message}",
                hint="with a certificate authority of your own: SSL_CERT_FILE=/path/to/ca.pem",
            )
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.UnsupportedProtocol):
        return UnreachableError(f"{shown(url)} is no http:// or https:// address")
    return TransientError(_reason(error))


def _reason(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.ConnectTimeout):
        return "the server does not accept the connection"
    if isinstance(error, httpx.TimeoutException):
        return "the server has fallen silent"
    if isinstance(error, httpx.RemoteProtocolError):
        return "the connection broke off"
    return str(error) or type(error).__name__


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _retry_after(text: str) -> float:
    """Seconds; 0 where the header is missing or makes no sense."""
    if text.isdecimal():
        return float(text)
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def _certificates(environ: Mapping[str, str]) -> ssl.SSLContext | bool:
    """The authorities that a user's own variables name, else httpx's."""
    for name in _BUNDLES:
        if environ.get(name):
            return ssl.create_default_context(cafile=environ[name])
    return True
