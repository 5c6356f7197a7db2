"""Download an archive and unpack it while it arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fdl.errors import FetchError
from fdl.fetch import directory
from fdl.fetch.archive import (
    Unpacked,
    planning,
    read_at,
    read_listing,
    space,
    summary,
    unpack_whole,
)
from fdl.fetch.arrival import Arrival
from fdl.fetch.client import Client
from fdl.fetch.digest import Algorithm, Digest
from fdl.fetch.failures import (
    ArchiveError,
    ChangedError,
    UnreachableError,
    disk_failure,
    require_space,
)
from fdl.fetch.options import Options
from fdl.fetch.part import Journal, Part, Saver, Span, source, write_all
from fdl.fetch.plan import Places, Select, plan
from fdl.fetch.remote import Answer, TransientError, get, shown
from fdl.fetch.together import Job, together
from fdl.fetch.transfer import Retries, Transfer
from fdl.fetch.tree import Tree
from fdl.fetch.unpack import Unpacking, digest
from fdl.fetch.walk import Found, Walk, agrees
from fdl.fetch.zip_format import LARGEST_ENDING
from fdl.output import note
from fdl.progress import Progress


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
) -> Unpacked:
    """Download a zip archive and unpack it while it arrives.

    If the server supports ranges, the directory is read first, and the rest arrives over several
    connections. Otherwise everything arrives as one stream. However this call ends, a later call
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
        progress: Receives how much of the archive is there.
        environ: The environment variables; those of proxies are taken from this process.
        options: Sizes, times and limits.

    Raises:
        FetchError: No address provides the archive; it is damaged, unsafe, or has another digest
            than expected; or the disk is full.
    """
    kept = Part(part)
    algorithm = "sha256" if sha256 else algorithm
    # An address with a part file from an earlier call comes first.
    ordered = sorted(urls, key=lambda url: kept.load(url) is None)
    failures: list[FetchError] = []
    with closing(Client(environ, options)) as client:
        for url in ordered:
            download = Download(
                client, url, kept, Tree(target), select, sha256, algorithm, progress, options
            )
            try:
                return download.run()
            except UnreachableError as error:
                failures.append(error)
                if url != ordered[-1]:
                    note(f"{error.message}; trying the next address")
                    download.tree.clear()
    if len(failures) == 1:
        raise failures[0]
    listed = "; ".join(error.message for error in failures)
    raise UnreachableError(
        f"none of {len(urls)} addresses gives the archive: {listed}", hint=failures[-1].hint
    )


@dataclass(frozen=True, slots=True)
class Download:
    """One archive from one address, unpacked to an empty folder."""

    client: Client
    url: str
    part: Part
    tree: Tree
    select: Select
    sha256: str | None
    algorithm: Algorithm
    progress: Progress
    options: Options

    def run(self) -> Unpacked:
        """Download and unpack.

        Raises:
            FetchError: It failed; the part file is kept unless the archive is bad.
        """
        for _ in range(self.options.restarts):
            try:
                return self._run()
            except ChangedError as change:
                note(f"fetching {shown(self.url)} from the beginning: {change}")
                self.tree.clear()
                self.part.remove()
        try:
            return self._run()
        except ChangedError as change:
            raise UnreachableError(
                f"cannot fetch {shown(self.url)}: {change}, again and again",
                hint="try again later, or take another source",
            ) from None

    def _run(self) -> Unpacked:
        try:
            unpacked = self._continue()
        except ArchiveError:
            self.part.remove()
            raise
        except OSError as error:
            raise disk_failure(self.part.path, error) from None
        self.part.remove()
        return unpacked

    def _continue(self) -> Unpacked:
        journal = self.part.load(self.url)
        retries = Retries(self.url, Arrival(), self.options, keeps=journal is not None)
        while True:
            missing = self._missing_of_directory(journal) if journal else None
            if journal and missing is None:
                return self._in_ranges(journal)
            span = f"{missing[0]}-{missing[1] - 1}" if missing else f"-{self._tail}"
            known = journal.version if journal else None
            try:
                with get(self.client, self.url, span, known) as answer:
                    if answer.whole:
                        return self._as_it_comes(answer)
                    before = journal.size if journal else 0
                    journal = self._receive(answer, journal or self._begin(answer), missing)
            except TransientError as failure:
                retries.failed(failure)
                continue
            if journal.size > before:
                retries.succeeded()
            retries.keeps = journal.size > 0
            if not journal.size or (missing and journal.gaps(*missing)):
                retries.failed(TransientError("the connection broke off"))

    @property
    def _tail(self) -> int:
        return max(self.options.tail, LARGEST_ENDING)

    def _missing_of_directory(self, journal: Journal) -> Span | None:
        """The first missing bytes of the archive's directory, which is at its end."""
        length = journal.length
        gaps = journal.gaps(max(0, length - self._tail), length)
        if not gaps:
            read = partial(read_at, self.part.path)
            found = directory.ending(read, length, self.options, shown(self.url))
            gaps = journal.gaps(found.offset, length)
        return gaps[0] if gaps else None

    def _begin(self, answer: Answer) -> Journal:
        version = answer.version
        self.part.begin()
        return Journal(source(self.url), version.etag, version.modified, version.length or 0)

    def _receive(self, answer: Answer, journal: Journal, wanted: Span | None) -> Journal:
        """Store an answer, which may break off, and return the journal with what came.

        Raises:
            TransientError: The server sends more than it was asked for.
            ChangedError: The server sends something else than it was asked for.
        """
        at, end = answer.start, wanted[1] if wanted else journal.length
        if wanted and at != wanted[0]:
            raise ChangedError("the server cannot continue where it broke off")
        saver = Saver(self.part, self.options)
        self.progress.start(journal.length, journal.size)
        try:
            with self.part.writer() as file, suppress(TransientError):
                file.seek(at)
                for block in answer.blocks():
                    write_all(file, block[: end - at])
                    journal = journal.with_bytes((at, min(at + len(block), end)))
                    at += len(block)
                    saver.arrived(len(block), journal.with_bytes)
                    self.progress.update(journal.size)
                    if at > end:
                        break
        finally:
            self.part.save(journal)
        if at > end:
            raise TransientError("the server sends more than it was asked for")
        return journal

    def _in_ranges(self, journal: Journal) -> Unpacked:
        """Download the missing bytes before the end, and unpack by the directory meanwhile."""
        path, options, length = self.part.path, self.options, journal.length
        listed = read_listing(path, length, self.select, options, shown(self.url))
        missing = length - journal.size
        require_space(self.tree.root, space(listed.chosen), path, missing)
        self.progress.start(length, length - missing)
        arrival = Arrival(length, journal.prefix)
        transfer = self._transfer(journal, arrival)
        unpacking = Unpacking(path, arrival, self.tree, options)
        jobs: list[Job] = [
            planning(listed, self.select, unpacking),
            partial(digest, path, arrival, self.algorithm),
            *[transfer.chunks] * options.connections,
            *unpacking.jobs(),
        ]
        members, actual, *_ = self._together(jobs, arrival, transfer)
        self.tree.finish(members, modes=False)
        return summary(members, actual, self.sha256, shown(self.url))

    def _as_it_comes(self, answer: Answer) -> Unpacked:
        """Download everything as one stream, and unpack from its beginning meanwhile."""
        self.part.begin()
        path, length = self.part.path, answer.version.length
        if length is None:
            length = self._drain(answer)
            return self._whole(length, None)
        require_space(self.tree.root, 0, path, length)
        self.progress.start(length)
        version = answer.version
        journal = Journal(source(self.url), version.etag, version.modified, length)
        arrival = Arrival(length)
        transfer = self._transfer(journal, arrival)
        unpacking = Unpacking(path, arrival, self.tree, self.options)
        places = Places(self.select)
        walk = Walk(path, arrival, places, self.tree, unpacking.backlog, self.options)
        jobs: list[Job] = [
            partial(digest, path, arrival, self.algorithm),
            walk.run,
            partial(transfer.stream, answer),
            *unpacking.jobs(),
        ]
        actual, found, *_ = self._together(jobs, arrival, transfer)
        return self._whole(length, (actual, found))

    def _whole(
        self, length: int, walked: tuple[Digest, dict[int, Found] | None] | None
    ) -> Unpacked:
        """Unpack the complete archive, unless that was done while it arrived."""
        path, where = self.part.path, shown(self.url)
        listed = read_listing(path, length, self.select, self.options, where)
        actual, found = walked or (None, None)
        if actual is not None and found is not None:
            members = plan(listed.entries, listed.offset, self.select, self.options)
            if agrees(found, members):
                self.tree.finish(members, modes=True)
                return summary(members, actual, self.sha256, where)
        self.tree.clear()
        require_space(self.tree.root, space(listed.chosen), path, 0)
        digesting = partial(digest, path, algorithm=self.algorithm)
        members, computed = unpack_whole(
            path, length, listed, self.select, self.tree, digesting, self.options
        )
        self.tree.finish(members, modes=False)
        return summary(members, computed, self.sha256, where)

    def _drain(self, answer: Answer) -> int:
        """Download a stream of unknown length; returns its length."""
        done = 0
        self.progress.start(0)
        with self.part.writer() as file:
            try:
                for block in answer.blocks():
                    write_all(file, block)
                    done += len(block)
                    self.progress.update(done)
            except TransientError as failure:
                raise ChangedError(failure.reason) from None
        return done

    def _transfer(self, journal: Journal, arrival: Arrival) -> Transfer:
        return Transfer(
            self.client, self.url, self.part, journal, arrival, self.progress, self.options
        )

    def _together(self, jobs: Sequence[Job], arrival: Arrival, transfer: Transfer) -> list[Any]:
        def stop() -> None:
            arrival.stop()
            self.client.hang_up()

        try:
            return together(jobs, stop)
        finally:
            transfer.save()
