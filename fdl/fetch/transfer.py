"""Download the bytes of an archive into its part file: in chunks, or as one stream."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import BinaryIO
from urllib.parse import urlsplit

from fdl.fetch.arrival import Arrival
from fdl.fetch.failures import ChangedError, UnreachableError, disk_failure
from fdl.fetch.options import Options
from fdl.fetch.part import Journal, Part, write_all
from fdl.fetch.remote import Answer, Remote, TransientError, backoff, shown
from fdl.output import note
from fdl.progress import Progress

_LONG = 5.0
"""Pauses longer than this, in seconds, are reported."""


class Retries:
    """Counts failures in a row and waits between them.

    Args:
        url: The address, for messages.
        arrival: Says when to stop waiting.
        options: Limits of number and time.
    """

    def __init__(self, url: str, arrival: Arrival, options: Options) -> None:
        self._url = url
        self._arrival = arrival
        self._options = options
        self._failures = 0

    def succeeded(self) -> None:
        """Reset the count of failures, because something was received."""
        self._failures = 0

    def failed(self, failure: TransientError) -> None:
        """Wait before the next attempt.

        Raises:
            UnreachableError: There were too many failures.
            StoppedError: The job was stopped meanwhile.
        """
        self._failures += 1
        self._arrival.check()
        if self._failures >= self._options.attempts:
            raise UnreachableError(
                f"cannot fetch {shown(self._url)}: {failure.reason} ({self._failures} attempts)",
                hint="check the network and type the same again; what was fetched is kept",
            )
        pause = backoff(self._failures, failure.after, self._options)
        if pause >= _LONG:
            host = urlsplit(self._url).hostname
            note(f"{host}: {failure.reason}; trying again in {pause:.0f} s")
        self._arrival.pause(pause)


class Transfer:
    """Downloads the missing bytes of a part file.

    Args:
        remote: The connections.
        url: The address.
        part: The part file; it exists.
        journal: Its content.
        arrival: Receives how far it is complete from its beginning.
        progress: Receives how many bytes are there.
        options: Sizes and limits.
    """

    def __init__(
        self,
        remote: Remote,
        url: str,
        part: Part,
        journal: Journal,
        arrival: Arrival,
        progress: Progress,
        options: Options,
    ) -> None:
        self._remote = remote
        self._url = url
        self._part = part
        self._journal = journal
        self._arrival = arrival
        self._progress = progress
        self._options = options
        self._guard = threading.Lock()
        self._disk = threading.Lock()
        self._next = journal.prefix
        self._done = journal.prefix + journal.length - journal.tail
        self._saved = journal.prefix
        # Start of a chunk -> position up to which it was downloaded.
        self._under_way: dict[int, int] = {}

    def chunks(self) -> None:
        """Download chunks up to the tail, one after the other; usable by several threads at once.

        Raises:
            ChangedError: The server has another state of the file.
            FetchError: The bytes cannot be downloaded or written.
            StoppedError: The job was stopped.
        """
        while (chunk := self._take()) is not None:
            begin, end = chunk
            self._span(begin, end, None)
            self._finished(begin)
        # Readers must know the end even if nothing had to be downloaded.
        with self._guard:
            self._report()

    def stream(self, answer: Answer) -> None:
        """Download everything, starting with an answer that was received; for one thread.

        Raises:
            ChangedError: The server has another state of the file, or starts it again.
            FetchError: The bytes cannot be downloaded or written.
            StoppedError: The job was stopped.
        """
        with self._guard:
            self._next = self._journal.length
            self._under_way[0] = 0
        self._span(0, self._journal.length, answer)
        self._finished(0)

    def _take(self) -> tuple[int, int] | None:
        with self._guard:
            begin = self._next
            if begin >= self._journal.tail:
                return None
            self._next = min(begin + self._options.chunk, self._journal.tail)
            self._under_way[begin] = begin
            return begin, self._next

    def _finished(self, begin: int) -> None:
        with self._guard:
            del self._under_way[begin]
            self._report()

    def _span(self, begin: int, end: int, answer: Answer | None) -> None:
        retries = Retries(self._url, self._arrival, self._options)
        with self._part.writer() as file:
            while (at := self._under_way[begin]) < end:
                try:
                    if answer is not None:
                        self._copy(answer, file, begin, end, retries)
                    else:
                        known = self._journal.version
                        with self._remote.get(self._url, f"{at}-{end - 1}", known) as again:
                            self._copy(again, file, begin, end, retries)
                    if self._under_way[begin] < end:
                        raise TransientError("the connection broke off")
                except TransientError as failure:
                    answer = None
                    retries.failed(failure)

    def _copy(self, answer: Answer, file: BinaryIO, begin: int, end: int, retries: Retries) -> None:
        at = self._under_way[begin]
        if answer.start != at:
            raise ChangedError("the server cannot continue where it broke off")
        file.seek(at)
        for block in answer.blocks():
            self._arrival.check()
            wanted = block[: end - at]
            try:
                # One writer at a time: the kernel lets two writers of one file spin.
                with self._disk:
                    write_all(file, wanted)
            except OSError as error:
                raise disk_failure(self._part.path, error) from None
            at += len(wanted)
            retries.succeeded()
            with self._guard:
                self._under_way[begin] = at
                self._done += len(wanted)
                self._report()
            if at == end:
                return

    def _report(self) -> None:
        prefix = min(self._under_way.values(), default=self._next)
        self._journal = replace(self._journal, prefix=prefix)
        if prefix >= self._journal.tail:
            self._arrival.end(self._journal.length)
        else:
            self._arrival.advance(prefix)
        if prefix - self._saved >= self._options.journal_every:
            self._save()
        self._progress.update(self._done)

    def _save(self) -> None:
        try:
            self._part.save(self._journal)
        except OSError as error:
            raise disk_failure(self._part.path, error) from None
        self._saved = self._journal.prefix

    def save(self) -> None:
        """Write the journal; for the end, when no thread downloads any more."""
        with contextlib.suppress(OSError):
            self._part.save(self._journal)
