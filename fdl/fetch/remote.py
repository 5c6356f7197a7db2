"""Request an archive, or a range of it, from a web server, and interpret the answers."""

from __future__ import annotations

import math
import random
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from urllib.parse import urlsplit

import httpx2

from fdl.fetch.client import AddressError, AuthorityError, Client
from fdl.fetch.failures import ChangedError, UnreachableError
from fdl.fetch.options import Options
from fdl.fetch.part import Version
from fdl.version import __version__

_PASSING = (408, 425, 429, 500, 502, 503, 504)
"""HTTP statuses of failures that may pass."""

_REMEDIES: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "give a user name and a password: https://USER:PASSWORD@HOST/...",
    HTTPStatus.FORBIDDEN: "the server refuses this user or this network; "
    "check the user name in the address, the proxy, and the server's list of allowed networks",
    HTTPStatus.NOT_FOUND: "check the address; what it names may have been moved or never existed",
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED: "give the proxy a user name and a password: "
    "https_proxy=http://USER:PASSWORD@PROXY:PORT",
}
"""HTTP status -> what to do."""

_OTHER = "the server has another file now"

_NAME = f"fdl/{__version__}"

_LEAST = 64 << 10

_REASONS: dict[type[BaseException], str] = {
    httpx2.ConnectTimeout: "the server does not accept the connection",
    httpx2.TimeoutException: "the server sends no data any more",
    httpx2.RemoteProtocolError: "the connection broke off",
    httpx2.ReadError: "the connection broke off",
}


class TransientError(Exception):
    """A failure that may pass.

    Attributes:
        reason: What happened, for the message if it does not pass.
        after: The pause in seconds that the server asks for.
    """

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer; its body is not read yet.

    Attributes:
        response: The answer itself.
        start: Offset in the file where the body begins.
        whole: Whether the body is the whole file, as from servers without ranges.
        version: The state of the file.
        watched: Seconds within which 64 KiB must arrive.
    """

    response: httpx2.Response
    start: int
    whole: bool
    version: Version
    watched: float = math.inf

    def blocks(self) -> Iterator[bytes]:
        """The body as it arrives; it may end early.

        Raises:
            TransientError: It stalls or ends early.
            UnreachableError: It drips.
        """
        began, arrived = time.monotonic(), 0
        length = self.response.headers.get("Content-Length", "")
        left = int(length) if length.isdecimal() else -1
        blocks = self.response.iter_raw()
        try:
            for block in blocks:
                left -= len(block)
                if left == 0:
                    # The exchange ends with the next step, which keeps the connection usable.
                    next(blocks, None)
                arrived += len(block)
                if left and arrived < _LEAST and time.monotonic() - began > self.watched:
                    raise self._drips(arrived)
                if arrived >= _LEAST:
                    began, arrived = time.monotonic(), 0
                yield block
        except httpx2.HTTPError as error:
            raise TransientError(_reason(error)) from None

    def _drips(self, arrived: int) -> UnreachableError:
        return UnreachableError(
            f"cannot fetch {shown(str(self.response.url))}: only {arrived} bytes arrived in "
            f"{self.watched:.0f} s",
            hint="check the network and type the same command again; what was fetched is kept",
        )


@contextmanager
def get(client: Client, url: str, span: str, known: Version | None = None) -> Iterator[Answer]:
    """Request a range of a file, in the form of ``Range``: ``-1024``, ``0-1023``.

    Raises:
        TransientError: A failure that may pass.
        ChangedError: The server has another state of the file than the known one.
        UnreachableError: There is no archive at the address.
    """
    headers = {"Range": f"bytes={span}", "User-Agent": _NAME, "Accept-Encoding": "identity"}
    if known and known.validator:
        headers["If-Range"] = known.validator
    with ExitStack() as stack:
        try:
            response = stack.enter_context(client.get(url, headers))
        except (httpx2.HTTPError, AddressError) as error:
            raise _failure(url, error) from None
        yield replace(_read_answer(response, url, known), watched=client.options.watched)


def shown(url: str) -> str:
    """An address for messages: without password and without query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the address"
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="", fragment="").geturl()


def backoff(failures: int, after: float, options: Options) -> float:
    """Seconds to wait after some failures in a row, from 1.

    The server asks for a pause of ``after`` seconds.
    """
    pause = options.backoff * 2 ** (failures - 1) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
    return float(min(max(pause, after), options.longest_backoff))


def _read_answer(response: httpx2.Response, url: str, known: Version | None) -> Answer:
    status, headers = response.status_code, response.headers
    if status in _PASSING:
        raise TransientError(_status(status), _retry_after(headers.get("Retry-After", "")))
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and known:
        raise ChangedError(_OTHER)
    if status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        raise UnreachableError(
            f"{shown(url)} answers {_status(status)}", hint=_REMEDIES.get(status, "")
        )
    encoding = headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise UnreachableError(
            f"{shown(url)} answers with `Content-Encoding: {encoding}`, which fdl did not ask for",
            hint="turn off compression of archives on that server or proxy, or download the file "
            "with another tool and install it with --from FILE",
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
        raise UnreachableError(f"{shown(url)} answers with an invalid range")
    version = Version(etag, modified, int(match[3]))
    return Answer(response, int(match[1]), False, _same(version, known))


def _same(seen: Version, known: Version | None) -> Version:
    if known and known.is_other(seen):
        raise ChangedError(_OTHER)
    return seen


def _failure(url: str, error: httpx2.HTTPError | AddressError) -> TransientError | UnreachableError:
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return UnreachableError(
                f"{shown(url)} has a certificate that cannot be verified: {cause.verify_message}",
                hint="with a certificate authority of your own: SSL_CERT_FILE=/path/to/ca.pem",
            )
        if isinstance(cause, AuthorityError):
            return UnreachableError(
                f"cannot fetch {shown(url)}: {cause}",
                hint="name a file of certificates: SSL_CERT_FILE=/path/to/ca.pem",
            )
        if isinstance(cause, AddressError):
            return UnreachableError(f"cannot fetch {shown(url)}: {cause}", hint="check the address")
    return TransientError(_reason(error))


def _reason(error: BaseException) -> str:
    for kind, reason in _REASONS.items():
        if isinstance(error, kind):
            return reason
    cause = list(_causes(error))[-1]
    return (cause.strerror if isinstance(cause, OSError) else "") or str(cause)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and the errors that caused it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _retry_after(text: str) -> float:
    """Seconds; 0 if the header is missing or invalid."""
    if text.isdecimal():
        return float(text)
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())
