"""Download an archive into a part file, resumably, then unpack it.

The end of an archive holds its directory. So it is downloaded first, into a file of its own, and
all members are checked before the rest is downloaded. Each of both files grows at its end, and its
size says which bytes are there. A third file beside them says of which state of which file on a
server they are. So a process may be killed at any moment, and the next call continues.
"""

from __future__ import annotations

import json
import re
import shutil
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import certifi
import httpx2

from fdl.base.errors import FetchError
from fdl.base.files import put
from fdl.base.output import note
from fdl.libtorch.archive import (
    ArchiveError,
    Bytes,
    Job,
    Members,
    Unpacked,
    UnreachableError,
    disk_failure,
    open_archive,
    require_space,
    shown,
)
from fdl.version import __version__


class ChangedError(Exception):
    """The part file cannot be continued, so the download starts from zero; the text says why."""


class State(NamedTuple):
    """What the bytes in a part file belong to; entries are empty if unknown."""

    source: str
    """The address, without what is secret."""
    validator: str
    """``ETag``, or else ``Last-Modified``."""
    length: int
    begin: int
    """Where the first answer began. From there on, the bytes are in a file of their own."""

    def is_other(self, seen: State) -> bool:
        """Whether an answer certainly belongs to another state of the file."""
        pairs = zip(self[1:3], seen[1:3], strict=True)
        return any(mine and theirs and mine != theirs for mine, theirs in pairs)


def state_of(part: Path) -> State | None:
    """What a part file belongs to; None if nothing says so, and no call can continue it."""
    try:
        state = State(**json.loads(_beside(part, "json").read_text(encoding="utf-8")))
        return state if 0 <= state.begin <= state.length else None
    except (OSError, ValueError, TypeError):
        return None


def _beside(part: Path, kind: str) -> Path:
    return part.with_name(f"{part.name}.{kind}")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


ENDING = 22 + 0xFFFF + 20 + 56
"""The most bytes that the records at the end of an archive take."""

_LEAST = 64 << 10
"""Bytes that must arrive within the time that is watched."""

_BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables with which users name their own certificate authorities."""

_GOOD, _NO_SUCH_RANGE = (200, 206), 416
_PASSING = (408, 425, 429, 500, 502, 503, 504)
"""HTTP statuses: of answers with content, and of failures that may pass."""

_UNUSABLE = (httpx2.UnsupportedProtocol, httpx2.TooManyRedirects, httpx2.InvalidURL, ValueError)
"""Errors of an address that no attempt can reach; ValueError if IDNA refuses the host name."""

_REMEDIES = {
    401: "give a user name and a password: https://USER:PASSWORD@HOST/...",
    403: "the server refuses this user or this network; check the user name and the proxy",
    404: "check the address; what it names may have been moved or never existed",
    407: "give the proxy a user name and a password: https_proxy=http://USER:PASSWORD@PROXY:PORT",
}
"""HTTP status -> what to do."""

_OTHER = "the server has another file now"


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


def _interpret(answer: httpx2.Response, source: str, known: State | None) -> State:
    """The state of the file that an answer is from; its body begins at ``State.begin``.

    Raises:
        httpx2.HTTPStatusError: A failure that may pass.
        ChangedError: The server has another state of the file than the known one.
        UnreachableError: There is no archive at the address.
    """
    status, headers = answer.status_code, answer.headers
    said = f"{status} {answer.reason_phrase}"
    encoding = headers.get("Content-Encoding", "identity")
    whole = f"bytes 0-0/{headers.get('Content-Length', 0)}"
    span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", headers.get("Content-Range", whole))
    problem = hint = ""
    if status in _PASSING:
        raise httpx2.HTTPStatusError(said, request=answer.request, response=answer)
    if status == _NO_SUCH_RANGE and known:
        raise ChangedError(_OTHER)
    if status not in _GOOD:
        problem, hint = f"answers {said}", _REMEDIES.get(status, "")
    elif encoding != "identity":
        problem = f"answers with `Content-Encoding: {encoding}`, which fdl did not ask for"
        hint = "download the file with another tool and install it with --from FILE"
    elif headers.get("Content-Type", "").startswith("text/html"):
        problem = "answers with a web page and not with an archive"
        hint = "a proxy or a log-in page may stand between; open the address in a browser"
    elif span is None:
        problem = "answers with an invalid range"
    if problem or span is None:
        raise UnreachableError(f"{source} {problem}", hint=hint)
    validator = headers.get("ETag", "") or headers.get("Last-Modified", "")
    seen = State(source, validator, length=int(span[2]), begin=int(span[1]))
    if known and known.is_other(seen):
        raise ChangedError(_OTHER)
    return seen


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
        part: Path of the part file, which exists until the archive is unpacked. The files that
            describe and complete it are in the same folder.
        environ: The environment variables; those of proxies are taken from this process.
        typed: The command that continues the download, for hints.

    Raises:
        FetchError: No address provides the archive; it is damaged, unsafe, or has another digest
            than expected; or the disk is full.
    """
    known = state_of(part)
    # The address with a part file from an earlier call comes first.
    ordered = sorted(urls, key=lambda url: known is None or known.source != shown(url))
    failures: list[FetchError] = []
    with _client(environ, job.options.stall_timeout) as client:
        for url in ordered:
            try:
                return _Download(client, url, part, job, typed).run()
            except UnreachableError as error:
                failures.append(error)
                if len(failures) < len(urls):
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
    url: str
    part: Path
    job: Job
    typed: str
    _failures: int = 0
    _watched_since: float = field(default_factory=time.monotonic)
    _watched_bytes: int = 0

    def run(self) -> Unpacked:
        """Download and unpack; what was downloaded is kept unless the archive is bad."""
        where, reason = shown(self.url), ""
        for attempt in range(self.job.options.attempts):
            if attempt:
                note(f"fetching {where} from the beginning: {reason}")
            try:
                members = self._fetch()
                unpacked = self.job.unpack(self.part, where, members)
            except ChangedError as change:
                reason = str(change)
                self._remove()
            except ArchiveError:
                self._remove()
                raise
            except OSError as error:
                raise disk_failure(self.part, error) from None
            else:
                self._remove()
                return unpacked
        raise self._given_up(f"{reason}, again and again", "try later, or take another source")

    def _fetch(self) -> Members | None:
        """Make the archive complete: first its end, then its beginning.

        Returns:
            What is to be unpacked; None if the end was too short to tell.

        Raises:
            ChangedError: The server has another state of the file, or starts it again.
            FetchError: The server is given up, or the archive is refused.
        """
        while (known := self._known) is None or not known.length:
            self._request()
        begin, end = known.begin, _beside(self.part, "end")
        members: Members | None = None
        if begin:
            while begin + _size(end) < known.length:
                self._request()
            # A directory that begins before this end is checked when the archive is complete.
            with suppress(OSError), Bytes(end, begin) as source:
                opened = open_archive(source, shown(self.url))
                members = self.job.check(opened, self.part, begin - _size(self.part))
        while _size(self.part) < (begin or known.length):
            self._request()
        if begin:
            with self.part.open("r+b") as whole, end.open("rb") as rest:
                whole.seek(begin)
                shutil.copyfileobj(rest, whole)
        return members

    def _request(self) -> None:
        """Ask once for missing bytes, or for the end of an archive whose length is not known.

        Servers without ranges send the whole archive.
        """
        known, span = self._known, f"-{max(self.job.options.tail, ENDING)}"
        if known and known.length:
            _, at, end = self._gap(known)
            span = f"{at}-{end - 1}"
        try:
            with self.client.stream("GET", self.url, headers={"Range": f"bytes={span}"}) as answer:
                seen = _interpret(answer, shown(self.url), known)
                self._receive(answer, seen, known or self._begin(seen))
        except httpx2.TimeoutException:
            self._watch(0)
        except _UNUSABLE as error:
            hint = "check the address and its redirects"
            raise self._given_up(str(error), hint) from None
        except (httpx2.TransportError, httpx2.HTTPStatusError) as error:
            self._failed(error)

    @property
    def _known(self) -> State | None:
        """What is in the part file, if that comes from this address."""
        known = state_of(self.part)
        return known if known and known.source == shown(self.url) else None

    @property
    def _held(self) -> int:
        """Number of bytes that are there."""
        return _size(self.part) + _size(_beside(self.part, "end")) if self._known else 0

    def _gap(self, known: State) -> tuple[Path, int, int]:
        """The file that grows next, and the offsets of the bytes it lacks."""
        end = _beside(self.part, "end")
        if known.begin and (at := known.begin + _size(end)) < known.length:
            return end, at, known.length
        return self.part, _size(self.part), known.begin or known.length or sys.maxsize

    def _begin(self, seen: State) -> State:
        """Make an empty part file."""
        self._remove()
        self._keep(seen)
        require_space(self.job.target, 0, self.part, seen.length)
        return seen

    def _keep(self, state: State) -> None:
        put(_beside(self.part, "json"), json.dumps(state._asdict()).encode())

    def _remove(self) -> None:
        for file in (self.part, _beside(self.part, "end"), _beside(self.part, "json")):
            file.unlink(missing_ok=True)

    def _receive(self, answer: httpx2.Response, seen: State, known: State) -> None:
        """Add the body of an answer, which may break off, to the file that grows next."""
        file, at, end = self._gap(known)
        if seen.begin != at:
            raise ChangedError("the server cannot continue where it broke off")
        held, first = self._held, at
        self.job.progress.start(known.length, held)
        with file.open("ab") as growing:
            for block in answer.iter_raw():
                growing.write(block[: end - at])
                growing.flush()
                at += len(block)
                self._failures = 0
                self.job.progress.update(held + at - first)
                self._watch(len(block))
                if at >= end:
                    break
        if at == first:
            raise httpx2.ReadError("the answer is empty")
        if not known.length:
            # Without a length, the end of the connection is the end of the file.
            self._keep(known._replace(length=at))

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

    def _failed(self, error: httpx2.HTTPError) -> None:
        """Wait before the next attempt.

        Raises:
            UnreachableError: There were too many failures, or the certificate is not trusted.
        """
        reason, hint = str(error), ""
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            reason = f"it has a certificate that cannot be verified: {reason}"
            hint = "with a certificate authority of your own: SSL_CERT_FILE=/path/to/ca.pem"
            raise self._given_up(reason, hint) from None
        if isinstance(error, httpx2.RemoteProtocolError | httpx2.ReadError):
            reason = "the connection broke off"
        self._failures += 1
        if self._failures >= self.job.options.attempts:
            raise self._given_up(f"{reason} ({self._failures} attempts)") from None
        time.sleep(self.job.options.backoff * 2 ** (self._failures - 1))
        self._watched_since, self._watched_bytes = time.monotonic(), 0

    def _given_up(self, reason: str, hint: str = "") -> UnreachableError:
        """The error that ends a download; the usual hint is the command that continues it."""
        kept = "; what was fetched is kept" if self._held else ""
        typed = f": {self.typed}" if self.typed else ""
        again = f"check the network and type the same command again{kept}{typed}"
        return UnreachableError(f"cannot fetch {shown(self.url)}: {reason}", hint=hint or again)
