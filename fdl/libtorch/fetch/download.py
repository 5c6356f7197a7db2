"""Download an archive into its part file, then unpack it."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx2

from fdl.base.errors import FetchError
from fdl.base.output import note
from fdl.base.progress import Progress
from fdl.libtorch.fetch.answer import Answer, get, open_client
from fdl.libtorch.fetch.archive import ENDING, Job, Select, Unpacked
from fdl.libtorch.fetch.digest import Algorithm
from fdl.libtorch.fetch.failures import (
    ArchiveError,
    ChangedError,
    TransientError,
    UnreachableError,
    disk_failure,
    require_space,
    shown,
)
from fdl.libtorch.fetch.options import Options
from fdl.libtorch.fetch.part import Part, Span

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
    algorithm: Algorithm = "blake3",
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
        algorithm: The digest to compute if none is expected.
        progress: Receives how much of the archive is there, then how much is unpacked.
        environ: The environment variables; those of proxies are taken from this process.
        options: Sizes, times and limits.
        typed: The command that continues the download, for hints.

    Raises:
        FetchError: No address provides the archive; it is damaged, unsafe, or has another digest
            than expected; or the disk is full.
    """
    job = Job(target, select, sha256, algorithm, progress, options)
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
        before = self.part.size
        span = f"{gap[0]}-{gap[1] - 1}" if gap else f"-{max(self.job.options.tail, ENDING)}"
        try:
            with get(self.client, self.part.url, span, self.part.version) as answer:
                if gap is None:
                    self.part.begin(answer.version)
                    gap = answer.start, answer.version.length
                    require_space(self.job.target, 0, self.part.path, gap[1] - gap[0])
                if answer.start != gap[0]:
                    raise ChangedError("the server cannot continue where it broke off")
                self._receive(answer, *gap)
            if self.part.size == before:
                raise TransientError("the connection broke off")
        except TransientError as failure:
            if self.part.size > before:
                self._failures = 0
                if not self.part.version.length:
                    raise ChangedError(failure.reason) from None
            self._failed(failure)

    def _receive(self, answer: Answer, at: int, end: int) -> None:
        """Write an answer, which may break off, to the part file and into its journal."""
        begin, saved, when = at, at, time.monotonic()
        before = self.part.size
        self.job.progress.start(self.part.version.length, before)
        try:
            with self.part.path.open("r+b") as file:
                file.seek(at)
                for block in answer.blocks():
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

    def _failed(self, failure: TransientError) -> None:
        """Wait before the next attempt.

        Raises:
            UnreachableError: There were too many failures.
        """
        self._failures += 1
        if self._failures >= self.job.options.attempts:
            raise self._given_up(f"{failure.reason} ({self._failures} attempts)")
        if failure.silent:
            self._watch(0)
        jitter = random.uniform(0.5, 1.0)  # noqa: S311
        pause = max(self.job.options.backoff * 2 ** (self._failures - 1) * jitter, failure.after)
        pause = min(pause, self.job.options.longest_backoff)
        if pause >= _LONG:
            host = urlsplit(self.part.url).hostname
            note(f"{host}: {failure.reason}; trying again in {pause:.0f} s")
        time.sleep(pause)
        if not failure.silent:
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
