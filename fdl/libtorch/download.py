"""Download an archive into its part file, resumably, then unpack it.

The journal beside the part file lists the bytes that are there. It is replaced after these bytes
were written, and removed before any of them is overwritten. So a process killed at any moment
leaves a journal that lists too little at worst, and the next call continues.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import certifi
import httpx2

from fdl.base.errors import FetchError
from fdl.base.files import put
from fdl.base.output import note
from fdl.base.progress import Progress
from fdl.libtorch.archive import (
    ENDING,
    ArchiveError,
    ChangedError,
    Job,
    Options,
    Select,
    Unpacked,
    UnreachableError,
    disk_failure,
    require_space,
    shown,
)
from fdl.version import __version__

Span = tuple[int, int]
"""Begin and end of some bytes of an archive."""


class Version(NamedTuple):
    """Identifies one state of a file on a server; entries are empty if unknown."""

    etag: str = ""
    modified: str = ""
    length: int = 0

    @property
    def validator(self) -> str:
        """The value for ``If-Range``: no weak tags, RFC 9110 section 13.1.5."""
        return self.modified if self.etag.startswith("W/") or not self.etag else self.etag

    def is_other(self, seen: Version) -> bool:
        """Whether an answer certainly belongs to another state of the file."""
        pairs = zip(self, seen, strict=True)
        return any(mine and theirs and mine != theirs for mine, theirs in pairs)


class Part:
    """A part file, and what its journal says about it; writing may raise OSError.

    Attributes:
        path: The part file; the journal is beside it.
        url: The address it comes from.
        version: The state of the file on the server; without a length, there is no part file.
        held: The bytes that are there, in order; no two spans touch.
    """

    def __init__(self, path: Path, url: str) -> None:
        self.path, self.url = path, url
        # Addresses may contain passwords.
        self._source = hashlib.sha256(url.encode()).hexdigest()
        source, version, held = _read(path) or ("", Version(), [])
        self.version, self.held = (version, held) if source == self._source else (Version(), [])

    def begin(self, version: Version) -> None:
        """Make an empty part file."""
        self.remove()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        self.version = version

    def remove(self) -> None:
        """Remove the part file and its journal, and what a killed process left of writing it."""
        for one in (*self.path.parent.glob(f"{self.path.name}.json*"), self.path):
            one.unlink(missing_ok=True)
        self.version, self.held = Version(), []

    @property
    def size(self) -> int:
        """Number of bytes that are there."""
        return sum(end - begin for begin, end in self.held)

    def gap(self, begin: int, end: int) -> Span | None:
        """The first missing bytes between two offsets."""
        for first, last in self.held:
            begin = last if first <= begin < last else begin
        limit = min((first for first, _ in self.held if first >= begin), default=end)
        return (begin, min(limit, end)) if begin < end else None

    def add(self, begin: int, end: int) -> None:
        """Record that some bytes were written, and write the journal."""
        joined: list[Span] = []
        for first, last in sorted([*self.held, (begin, end)]):
            if joined and first <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(joined[-1][1], last)
            elif first < last:
                joined.append((first, last))
        self.held = joined
        content = {"source": self._source, "version": self.version, "held": self.held}
        put(_journal(self.path), json.dumps(content).encode())


def is_resumable(path: Path) -> bool:
    """Whether a later call for the same address can continue a part file."""
    return _read(path) is not None


def _journal(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _read(path: Path) -> tuple[str, Version, list[Span]] | None:
    """The journal of a part file; None if there is none, or if it does not match the file."""
    try:
        fields = json.loads(_journal(path).read_text(encoding="utf-8"))
        etag, modified, length = fields["version"]
        version = Version(str(etag), str(modified), int(length))
        held = [(int(begin), int(end)) for begin, end in fields["held"]]
        size = min(path.stat().st_size, version.length)
        limits = [0, *(edge for span in held for edge in span), size]
        return (str(fields["source"]), version, held) if limits == sorted(limits) else None
    except (OSError, ValueError, TypeError, LookupError):
        return None


_BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables with which users name their own certificate authorities."""

_PASSING = (408, 425, 429, 500, 502, 503, 504)
"""HTTP statuses of failures that may pass."""

_REMEDIES = {
    401: "give a user name and a password: https://USER:PASSWORD@HOST/...",
    403: "the server refuses this user or this network; "
    "check the user name in the address, the proxy, and the server's list of allowed networks",
    404: "check the address; what it names may have been moved or never existed",
    407: "give the proxy a user name and a password: https_proxy=http://USER:PASSWORD@PROXY:PORT",
}
"""HTTP status -> what to do."""

_REASONS: tuple[tuple[type[httpx2.HTTPError], str], ...] = (
    (httpx2.ConnectTimeout, "the server does not accept the connection"),
    (httpx2.TimeoutException, "the server sends no data any more"),
    (httpx2.RemoteProtocolError, "the connection broke off"),
    (httpx2.ReadError, "the connection broke off"),
)
"""What happened, for the message if it does not pass."""

_OTHER = "the server has another file now"


def open_client(environ: Mapping[str, str], options: Options) -> httpx2.Client:
    """A client with the certificate authorities that the user's variables name.

    Proxies are those of the process's environment or of the system.

    Raises:
        UnreachableError: The authorities or the proxy cannot be used.
    """
    named = next(filter(None, map(environ.get, _BUNDLES)), None)
    try:
        return httpx2.Client(
            verify=ssl.create_default_context(cafile=named) if named else _usual_authorities(),
            timeout=httpx2.Timeout(options.stall_timeout, connect=options.connect_timeout),
            # A kept connection that the server closes meanwhile would look like a failure.
            limits=httpx2.Limits(max_keepalive_connections=0),
            follow_redirects=True,
            max_redirects=10,
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


def _send(client: httpx2.Client, url: str, span: str, known: Version) -> httpx2.Response:
    """Request a range of a file, in the form of ``Range``: ``-1024``, ``0-1023``."""
    headers = {"Range": f"bytes={span}"}
    if known.validator:
        headers["If-Range"] = known.validator
    request = client.build_request("GET", url, headers=headers)
    if not request.url.host:
        raise httpx2.UnsupportedProtocol("it is not an http:// or https:// address")
    return client.send(request, stream=True)


def _interpret(response: httpx2.Response, where: str, known: Version) -> tuple[int, Version]:
    """Offset in the file where the body of an answer begins, and the state of the file.

    Raises:
        httpx2.HTTPStatusError: A failure that may pass.
        ChangedError: The server has another state of the file than the known one.
        UnreachableError: There is no archive at the address.
    """
    status, headers = response.status_code, response.headers
    said = f"{status} {httpx2.codes.get_reason_phrase(status)}".strip()
    encoding = headers.get("Content-Encoding", "identity")
    is_range = status == HTTPStatus.PARTIAL_CONTENT
    form = r"bytes (\d+)-\d+/(\d+)" if is_range else r"()(\d*)"
    match = re.fullmatch(form, headers.get("Content-Range" if is_range else "Content-Length", ""))
    problem = hint = ""
    if status in _PASSING:
        raise httpx2.HTTPStatusError(said, request=response.request, response=response)
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and known.length:
        raise ChangedError(_OTHER)
    if status != HTTPStatus.OK and not is_range:
        problem, hint = f"answers {said}", _REMEDIES.get(status, "")
    elif encoding != "identity":
        problem = f"answers with `Content-Encoding: {encoding}`, which fdl did not ask for"
        hint = (
            "turn off compression of archives on that server or proxy, or download the file "
            "with another tool and install it with --from FILE"
        )
    elif headers.get("Content-Type", "").startswith("text/html"):
        problem = "answers with a web page and not with an archive"
        hint = "a proxy or a log-in page may stand between; open the address in a browser"
    elif match is None:
        problem = "answers with an invalid range"
    if problem or match is None:
        raise UnreachableError(f"{where} {problem}", hint=hint)
    version = Version(headers.get("ETag", ""), headers.get("Last-Modified", ""), int(match[2] or 0))
    if known.is_other(version):
        raise ChangedError(_OTHER)
    return int(match[1] or 0), version


@cache
def _usual_authorities() -> ssl.SSLContext:
    """Those of the system and of certifi. To read them takes longer than to fetch a small file."""
    context = ssl.create_default_context()
    # Some builds of Python do not know the authorities of the system.
    context.load_verify_locations(certifi.where())
    return context


def _refuse_downgrade(response: httpx2.Response) -> None:
    """Refuse a redirect that gives up encryption."""
    if response.url.scheme == "https" and response.has_redirect_location:
        target = response.url.join(response.headers["Location"])
        if target.scheme != "https":
            reason = f"a redirect leads from https to {target.scheme}://{target.host}"
            raise httpx2.UnsupportedProtocol(reason)


_LONG = 5.0
"""Pauses longer than this, in seconds, are reported."""

_LEAST = 64 << 10
"""Bytes that must arrive within the time that is watched."""


def unpack_url(
    urls: Sequence[str],
    target: Path,
    *,
    select: Select,
    part: Path,
    sha256: str | None = None,
    progress: Progress,
    environ: Mapping[str, str],
    options: Options = Options(),  # noqa: B008 - frozen
    typed: str = "",
) -> Unpacked:
    """Download a zip archive and unpack it.

    If the server supports ranges, the directory is read first: all members are checked, and the
    space for archive and tree, before the rest is downloaded. However this call ends, a later call
    does not download the bytes in the part file again, if the file on the server is still the
    same. Two calls must not use the same part file at the same time.

    Folders are created for the files in them; empty folders are left out. Execute bits and symbolic
    links are restored; links must not lead outside the target.

    Args:
        urls: Addresses of the same archive; they are tried in order.
        target: An existing empty folder. After a failure, its content is useless.
        select: Name of a file -> its path relative to ``target``, or None to leave it out.
        part: Path of the part file, which exists until the archive is unpacked. Its journal is in
            the same folder.
        sha256: The expected digest of the archive; None for any.
        progress: Receives how much of the archive is there, then how much is unpacked.
        environ: The environment variables; those of proxies are taken from this process.
        options: Sizes, times and limits.
        typed: The command that continues the download, for hints.

    Raises:
        FetchError: No address provides the archive; it is damaged, unsafe, or has another digest
            than expected; or the disk is full.
    """
    job = Job(target, select, sha256, progress, options)
    # An address with a part file from an earlier call comes first.
    parts = sorted((Part(part, url) for url in urls), key=lambda one: not one.version.length)
    failures: list[FetchError] = []
    with open_client(environ, options) as client:
        for one in parts:
            try:
                return _Download(client, one, job, typed).run()
            except UnreachableError as error:
                failures.append(error)
                if one is not parts[-1]:
                    note(f"{error.message}; trying the next address")
    if len(failures) == 1:
        raise failures[0]
    reasons = "; ".join(error.message for error in failures)
    raise UnreachableError(
        f"none of {len(urls)} addresses gives the archive: {reasons}", hint=failures[-1].hint
    )


@dataclass(slots=True)
class _Download:
    """One archive from one address."""

    client: httpx2.Client
    part: Part
    job: Job
    typed: str
    _failures: int = 0
    _watched_since: float = field(default_factory=time.monotonic)
    _watched_bytes: int = 0

    def run(self) -> Unpacked:
        """Download and unpack; the part file is kept unless the archive is bad."""
        part, options, where, reason = self.part, self.job.options, shown(self.part.url), ""
        for restart in range(options.restarts + 1):
            if restart:
                note(f"fetching {where} from the beginning: {reason}")
            try:
                while not part.version.length:
                    self._request(None)
                length = part.version.length
                self.ensure(max(0, length - max(options.tail, ENDING)), length)
                with _Arriving(self) as source:
                    unpacked = self.job.unpack(source, part.path, where, self._rest)
            except ChangedError as change:
                reason = str(change)
                part.remove()
            except ArchiveError:
                part.remove()
                raise
            except OSError as error:
                raise disk_failure(part.path, error) from None
            else:
                part.remove()
                return unpacked
        raise UnreachableError(
            f"cannot fetch {where}: {reason}, again and again",
            hint="try again later, or take another source",
        )

    def ensure(self, begin: int, end: int) -> None:
        """Download what is missing between two offsets.

        Raises:
            ChangedError: The server has another state of the file, or starts it again.
            UnreachableError: The server is given up.
        """
        while gap := self.part.gap(begin, end):
            self._request(gap)

    def _rest(self, unpacked: int) -> None:
        length = self.part.version.length
        require_space(self.job.target, unpacked, self.part.path, length - self.part.size)
        self.ensure(0, length)

    def _request(self, gap: Span | None) -> None:
        """Ask once for missing bytes, or for the end of an archive whose length is not known.

        Servers without ranges send the whole archive.
        """
        part, before = self.part, self.part.size
        span = f"{gap[0]}-{gap[1] - 1}" if gap else f"-{max(self.job.options.tail, ENDING)}"
        try:
            with closing(_send(self.client, part.url, span, part.version)) as response:
                start, version = _interpret(response, shown(part.url), part.version)
                if gap is None:
                    part.begin(version)
                    gap = start, version.length
                    require_space(self.job.target, 0, part.path, gap[1] - gap[0])
                if start != gap[0]:
                    raise ChangedError("the server cannot continue where it broke off")
                self._receive(response, *gap)
            if part.size == before:
                raise httpx2.ReadError("it is empty")
        # ValueError: such as a host name that IDNA refuses.
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            self._failed(error, has_more=part.size > before)

    def _receive(self, response: httpx2.Response, at: int, end: int) -> None:
        """Write an answer, which may break off, to the part file and into its journal."""
        begin, saved, when = at, at, time.monotonic()
        before = self.part.size
        self.job.progress.start(self.part.version.length, before)
        try:
            with self.part.path.open("r+b") as file:
                file.seek(at)
                for block in response.iter_raw():
                    at += file.write(block[: end - at] if end else block)
                    often = time.monotonic() - when >= self.job.options.journal_seconds
                    if often or at - saved >= self.job.options.journal_every:
                        file.flush()
                        self.part.add(begin, at)
                        saved, when = at, time.monotonic()
                    self.job.progress.update(before + at - begin)
                    self._watch(len(block))
                    if at == end:
                        break
            if not end:
                # Without a length, the end of the connection is the end of the file.
                self.part.version = self.part.version._replace(length=at)
        finally:
            # Closing the file has written all of it.
            with suppress(OSError):
                self.part.add(begin, at)

    def _watch(self, arrived: int) -> None:
        """Give up a server that sends too little for a while."""
        self._watched_bytes += arrived
        now = time.monotonic()
        if self._watched_bytes >= _LEAST:
            self._watched_since, self._watched_bytes = now, 0
        elif now - self._watched_since > self.job.options.watched:
            raise self._given_up(
                f"only {self._watched_bytes} bytes arrived in {self.job.options.watched:.0f} s"
            )

    def _failed(self, error: Exception, *, has_more: bool) -> None:
        """Wait before the next attempt.

        Raises:
            UnreachableError: It will not pass, or there were too many failures.
            ChangedError: Some bytes came, and cannot be continued.
        """
        reason = next((said for kind, said in _REASONS if isinstance(error, kind)), str(error))
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            raise UnreachableError(
                f"{shown(self.part.url)} has a certificate that cannot be verified: {error}",
                hint="with a certificate authority of your own: SSL_CERT_FILE=/path/to/ca.pem",
            ) from None
        is_passing = isinstance(error, httpx2.TransportError | httpx2.HTTPStatusError)
        if not is_passing or isinstance(error, httpx2.UnsupportedProtocol):
            raise UnreachableError(
                f"cannot fetch {shown(self.part.url)}: {error}",
                hint="check the address and its redirects",
            ) from None
        if has_more and not self.part.version.length:
            raise ChangedError(reason) from None
        self._failures = 1 if has_more else self._failures + 1
        if self._failures >= self.job.options.attempts:
            raise self._given_up(f"{reason} ({self._failures} attempts)") from None
        is_silent = isinstance(error, httpx2.ReadTimeout)
        if is_silent:
            self._watch(0)
        after = ""
        if isinstance(error, httpx2.HTTPStatusError):
            after = error.response.headers.get("Retry-After", "")
        jitter = random.uniform(0.5, 1.0)  # noqa: S311
        pause = self.job.options.backoff * 2 ** (self._failures - 1) * jitter
        pause = max(pause, float(after) if after.isdecimal() else 0.0)
        pause = min(pause, self.job.options.longest_backoff)
        if pause >= _LONG:
            host = urlsplit(self.part.url).hostname
            note(f"{host}: {reason}; trying again in {pause:.0f} s")
        time.sleep(pause)
        if not is_silent:
            self._watched_since, self._watched_bytes = time.monotonic(), 0

    def _given_up(self, reason: str) -> UnreachableError:
        kept = "; what was fetched is kept" if self.part.size else ""
        typed = f": {self.typed}" if self.typed else ""
        return UnreachableError(
            f"cannot fetch {shown(self.part.url)}: {reason}",
            hint=f"check the network and type the same command again{kept}{typed}",
        )


class _Arriving(io.FileIO):
    """The part file as zipfile reads it; what is missing is downloaded first.

    Its end is there, so it has its whole length.
    """

    def __init__(self, download: _Download) -> None:
        super().__init__(download.part.path)
        self._download = download

    def read(self, size: int | None = -1, /) -> bytes:
        at, part = self.tell(), self._download.part
        end = part.version.length if size is None or size < 0 else at + size
        end = min(end, part.version.length)
        if end - at > self._download.job.options.largest_directory:
            large = f"has a directory of {(end - at) // 1_000_000} MB; it is refused"
            raise ArchiveError(f"{shown(part.url)} {large}")
        self._download.ensure(at, end)
        return super().read(max(end - at, 0))
