"""Download an archive into a part file, resumably, then unpack it.

The end of an archive holds its directory. So it is downloaded first, and all members are checked
before the rest is downloaded. The part file has the bytes in the order in which they come, so its
size says which ones are there. A file beside it says of which state of which file on a server they
are. So a process may be killed at any moment, and the next call continues.
"""

from __future__ import annotations

import io
import json
import os
import re
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import certifi
import httpx2

from fdl.base.errors import FetchError, failing
from fdl.base.output import note
from fdl.base.own_files import inside, put_own
from fdl.libtorch.archive import (
    ArchiveError,
    Job,
    Unpacked,
    UnreachableError,
    disk_failure,
    require_space,
    shown,
)
from fdl.version import __version__

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class ChangedError(Exception):
    """The part file cannot be continued, so the download starts from zero; the text says why."""


class State(NamedTuple):
    """Which state of a file on a server the bytes in a part file belong to."""

    validator: str
    """``ETag``, or else ``Last-Modified``; empty if the server sends neither."""
    length: int
    """0 if unknown."""
    begin: int
    """Where the first answer began. From there on, the bytes come before all others."""


def state_of(part: Path) -> State | None:
    """What a part file belongs to; None if nothing says so, and no call can continue it."""
    try:
        state = State(**json.loads(_journal(part).read_text(encoding="utf-8")))
        return state if 0 <= state.begin <= state.length else None
    except (OSError, ValueError, TypeError):
        return None


def _journal(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


_LEAST = 64 << 10
"""Bytes that must arrive within the time that is watched."""

_BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables with which users name their own certificate authorities."""

_NO_SUCH_RANGE = 416
_PASSING = (408, 425, 429, 500, 502, 503, 504)
"""HTTP statuses of failures that may pass."""

_UNUSABLE = (httpx2.UnsupportedProtocol, httpx2.TooManyRedirects, httpx2.InvalidURL, ValueError)
"""Errors of an address that no attempt can reach; ValueError if IDNA refuses the host name."""

_REMEDIES = {
    401: "give a user name and a password: https://USER:PASSWORD@HOST/...",
    403: "the server refuses this user or this network; check the user name and the proxy",
    404: "check the address; what it names may have been moved or never existed",
    407: "give the proxy a user name and a password: https_proxy=http://USER:PASSWORD@PROXY:PORT",
}
"""HTTP status -> what to do."""


def _client(environ: Mapping[str, str], timeout: float) -> httpx2.Client:
    """A client with the certificate authorities that the user's variables name.

    Else those of the system and of certifi: some builds of Python do not know the first. Proxies
    are those of the process's environment or of the system.

    Raises:
        UnreachableError: The authorities or the proxy cannot be used.
    """
    named = next(filter(None, map(environ.get, _BUNDLES)), None)
    try:
        authorities = ssl.create_default_context(cafile=named)
        if not named:
            authorities.load_verify_locations(certifi.where())
        return httpx2.Client(
            verify=authorities,
            timeout=timeout,
            # A kept connection that the server closes meanwhile would look like a failure.
            limits=httpx2.Limits(max_keepalive_connections=0),
            follow_redirects=True,
            event_hooks={"response": [_refuse_downgrade]},
            headers={"User-Agent": f"fdl/{__version__}", "Accept-Encoding": "identity"},
        )
    except OSError as error:
        empty = isinstance(error, ssl.SSLError)
        reason = "there is no certificate in it" if empty else error.strerror
        raise UnreachableError(
            f"the certificate authorities of {named} cannot be read: {reason}",
            hint="name a file of certificates: SSL_CERT_FILE=/path/to/ca.pem",
        ) from None
    except (ImportError, ValueError) as error:
        socks = isinstance(error, ImportError)
        reason = "it is a SOCKS proxy, which needs the package `socksio`" if socks else str(error)
        raise UnreachableError(f"the proxy cannot be used: {reason}") from None


def _refuse_downgrade(response: httpx2.Response) -> None:
    """Refuse a redirect that gives up encryption."""
    if response.url.scheme == "https" and response.has_redirect_location:
        target = response.url.join(response.headers["Location"])
        if target.scheme != "https":
            reason = f"a redirect leads from https to {target.scheme}://{target.host}"
            raise httpx2.UnsupportedProtocol(reason)


def _interpret(answer: httpx2.Response, source: str) -> State:
    """The state of the file that an answer is from; its body begins at ``State.begin``.

    Raises:
        httpx2.HTTPStatusError: A failure that may pass.
        UnreachableError: There is no archive at the address.
    """
    status, headers = answer.status_code, answer.headers
    said = f"{status} {answer.reason_phrase}"
    encoding = headers.get("Content-Encoding", "identity")
    whole = f"bytes 0-0/{headers.get('Content-Length', 0)}"
    span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", headers.get("Content-Range", whole))
    problem, hint = "answers with an invalid range", ""
    if status in _PASSING:
        raise httpx2.HTTPStatusError(said, request=answer.request, response=answer)
    if status not in (200, 206):
        problem, hint = f"answers {said}", _REMEDIES.get(status, "")
    elif encoding != "identity":
        problem = f"answers with `Content-Encoding: {encoding}`, which fdl did not ask for"
        hint = "download the file with another tool and install it with --from FILE"
    elif headers.get("Content-Type", "").startswith("text/html"):
        problem = "answers with a web page and not with an archive"
        hint = "a proxy or a log-in page may stand between; open the address in a browser"
    elif span is not None:
        validator = headers.get("ETag", "") or headers.get("Last-Modified", "")
        return State(validator, length=int(span[2]), begin=int(span[1]))
    raise UnreachableError(f"{source} {problem}", hint=hint)


def unpack_url(
    urls: Sequence[str], job: Job, *, part: Path, environ: Mapping[str, str], typed: str = ""
) -> Unpacked:
    """Download a zip archive and unpack it.

    However this call ends, a later call does not download the bytes in the part file again, if the
    file on the server is still the same. Two calls must not use the same part file at the same
    time.

    Args:
        urls: Addresses of the same archive; they are tried in order.
        job: What to unpack, and where.
        part: Path of the part file, which exists until the archive is unpacked. The file that
            describes it is in the same folder.
        environ: The environment variables; those of proxies are taken from this process.
        typed: The command that continues the download, for hints.

    Raises:
        FetchError: No address provides the archive; it is damaged, unsafe, or has another digest
            than expected; or the disk is full.
    """
    failures: list[UnreachableError] = []
    with _client(environ, job.options.stall_timeout) as client:
        for url in urls:
            if failures:
                note(f"{failures[-1].message}; trying the next address")
            try:
                return _unpack(client, url, job, part, typed)
            except UnreachableError as error:
                failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    reasons = "; ".join(error.message for error in failures)
    raise UnreachableError(
        f"none of {len(urls)} addresses gives the archive: {reasons}", hint=failures[-1].hint
    )


def _unpack(client: httpx2.Client, url: str, job: Job, part: Path, typed: str) -> Unpacked:
    """Download from one address and unpack; begin again if the archive has changed."""
    for _ in range(job.options.attempts):
        try:
            with _Download(client, url, job, part, typed) as source:
                return job.unpack(part, source, shown(url))
        except ChangedError as change:
            reason = str(change)
            note(f"fetching {shown(url)} from the beginning: {reason}")
    raise UnreachableError(
        f"cannot fetch {shown(url)}: {reason}, again and again",
        hint="try later, or take another source",
    )


class _Download(io.FileIO):
    """An archive at one address, which is downloaded when it is read.

    The part file has its bytes in the order in which they come: the end of the archive, then its
    beginning. Positions are those in the archive.
    """

    def __init__(self, client: httpx2.Client, url: str, job: Job, part: Path, typed: str) -> None:
        with failing(f"cannot write {part}", kind=FetchError):
            part.parent.mkdir(parents=True, exist_ok=True)
            super().__init__(inside(part.parent, part.name), "a+")
        self._client, self._url, self._job = client, url, job
        self._part, self._typed = part, typed
        self._known = state_of(part)
        self._failures = 0
        self._watched_since, self._watched_bytes = time.monotonic(), 0

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Close the part file, and remove it unless a later call can use it."""
        super().__exit__(kind, error, trace)
        is_useless = error is None or isinstance(error, ChangedError | ArchiveError)
        if is_useless or not self._part.stat().st_size:
            _journal(self._part).unlink(missing_ok=True)
            self._part.unlink()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a position in the archive."""
        if whence == os.SEEK_END:
            offset, whence = self._state.length + offset, os.SEEK_SET
        return super().seek(offset, whence)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read bytes of the end when all of the end is there, and others when all are there."""
        at = self.tell()
        _, length, begin = self._state
        needed = length - begin if at >= begin else length
        while self._held < needed:
            self._request()
        super().seek((at - begin) % length)
        count = super().readinto(memoryview(buffer)[: max(0, length - at)])
        super().seek(at + count)
        return count

    @property
    def _state(self) -> State:
        """What the bytes in the part file belong to."""
        while self._known is None or not self._known.length:
            self._request()
        return self._known

    @property
    def _held(self) -> int:
        """Number of bytes that are there."""
        return self._part.stat().st_size if self._known else 0

    def _request(self) -> None:
        """Ask once for missing bytes, or for the end of an archive whose length is not known.

        Servers without ranges send the whole archive.

        Raises:
            ChangedError: The server has another state of the file, or starts it again.
            FetchError: The server is given up, or the disk is full.
        """
        span = f"-{self._job.options.tail}"
        if self._known:
            at, begin = self._next(self._known), self._known.begin
            span = f"{at}-{begin - 1 if at < begin else ''}"
        try:
            with self._client.stream(
                "GET", self._url, headers={"Range": f"bytes={span}"}
            ) as answer:
                self._receive(answer)
        except httpx2.TimeoutException:
            self._watch(0)
        except _UNUSABLE as error:
            hint = "check the address and its redirects"
            raise self._given_up(str(error), hint) from None
        except (httpx2.TransportError, httpx2.HTTPStatusError) as error:
            self._failed(error)
        except OSError as error:
            raise disk_failure(self._part, error) from None

    def _next(self, known: State) -> int:
        """The position of the byte that comes next."""
        at = known.begin + self._held
        return at % known.length if known.length else at

    def _receive(self, answer: httpx2.Response) -> None:
        """Add the body of an answer, which may break off, to the part file."""
        if self._known and answer.status_code == _NO_SUCH_RANGE:
            raise ChangedError("the server has another file now")
        seen = _interpret(answer, shown(self._url))
        known = self._known or self._begin(seen)
        if known[:2] != seen[:2]:
            raise ChangedError("the server has another file now")
        if seen.begin != self._next(known):
            raise ChangedError("the server cannot continue where it broke off")
        held = self._held
        self._job.progress.start(known.length, held)
        for block in answer.iter_raw():
            missing = block[: (known.length or sys.maxsize) - self._held]
            while missing:
                missing = missing[self.write(missing) :]
            self._failures = 0
            self._job.progress.update(self._held)
            self._watch(len(block))
            if self._held == known.length:
                break
        if self._held == held:
            raise httpx2.ReadError("the answer is empty")
        # Without a length, the end of the connection is the end of the file.
        self._known = known._replace(length=known.length or self._held)

    def _begin(self, seen: State) -> State:
        """Make an empty part file."""
        self.truncate(0)
        put_own(self._part.parent, _journal(self._part), json.dumps(seen._asdict()).encode())
        require_space(self._job.target, 0, self._part, seen.length)
        self._known = seen
        return seen

    def _watch(self, arrived: int) -> None:
        """Give up a server that sends too little for a while."""
        self._watched_bytes += arrived
        now = time.monotonic()
        if self._watched_bytes >= _LEAST:
            self._watched_since, self._watched_bytes = now, 0
        elif now - self._watched_since > self._job.options.watched:
            raise self._given_up(
                f"only {self._watched_bytes} bytes arrived in {self._job.options.watched:.0f} s"
            )

    def _failed(self, error: httpx2.HTTPError) -> None:
        """Wait before the next attempt.

        Raises:
            UnreachableError: There were too many failures, or the certificate is not trusted.
        """
        reason = str(error)
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            hint = "with a certificate authority of your own: SSL_CERT_FILE=/path/to/ca.pem"
            raise self._given_up(f"it has a certificate that cannot be verified: {reason}", hint)
        if isinstance(error, httpx2.RemoteProtocolError | httpx2.ReadError):
            reason = "the connection broke off"
        self._failures += 1
        if self._failures >= self._job.options.attempts:
            raise self._given_up(f"{reason} ({self._failures} attempts)")
        time.sleep(self._job.options.backoff * 2 ** (self._failures - 1))

    def _given_up(self, reason: str, hint: str = "") -> UnreachableError:
        """The error that ends a download; the usual hint is the command that continues it."""
        kept = "; what was fetched is kept" if self._held else ""
        typed = f": {self._typed}" if self._typed else ""
        again = f"check the network and type the same command again{kept}{typed}"
        return UnreachableError(f"cannot fetch {shown(self._url)}: {reason}", hint=hint or again)
