"""Download the bytes of an archive into its part file: in chunks, or as one stream."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import BinaryIO
from urllib.parse import urlsplit

from fdl.fetch.arrival import Arrival
from fdl.fetch.client import Client
from fdl.fetch.failures import ChangedError, UnreachableError, disk_failure
from fdl.fetch.options import Options
from fdl.fetch.part import Journal, Part, Saver, Span, write_all
from fdl.fetch.remote import Answer, TransientError, backoff, get, shown
from fdl.output import note
from fdl.progress import Progress

_LONG = 5.0
"""Pauses longer than this, in seconds, are reported."""


@dataclass(slots=True)
class Retries:
    """Counts failures in a row and waits between them, until an arrival is stopped.

    Attributes:
        keeps: Whether a later call can use what this one has downloaded.
    """

    url: str
    arrival: Arrival
    options: Options
    keeps: bool = False
    failures: int = 0

    def succeeded(self) -> None:
        """Reset the count of failures, because something was received."""
        self.failures = 0

    def failed(self, failure: TransientError) -> None:
        """Wait before the next attempt.

        Raises:
            UnreachableError: There were too many failures.
            StoppedError: The job was stopped meanwhile.
        """
        self.failures += 1
        self.arrival.check()
        if self.failures >= self.options.attempts:
            raise UnreachableError(
                f"cannot fetch {shown(self.url)}: {failure.reason} ({self.failures} attempts)",
                hint="check the network and type the same command again"
                + ("; what was fetched is kept" if self.keeps else ""),
            )
        pause = backoff(self.failures, failure.after, self.options)
        if pause >= _LONG:
            host = urlsplit(self.url).hostname
            note(f"{host}: {failure.reason}; trying again in {pause:.0f} s")
        self.arrival.pause(pause)


@dataclass(slots=True)
class Transfer:
    """Downloads the missing bytes of a part file, which exists.

    Attributes:
        journal: The content of the part file.
        arrival: Receives how far it is complete from its beginning.
        progress: Receives how many bytes are there.
    """

    client: Client
    url: str
    part: Part
    journal: Journal
    arrival: Arrival
    progress: Progress
    options: Options
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _disk: threading.Lock = field(default_factory=threading.Lock)
    # Start of a chunk -> position up to which it was downloaded.
    _under_way: dict[int, int] = field(default_factory=dict)
    _gaps: deque[Span] = field(init=False)
    _done: int = field(init=False)
    _saver: Saver = field(init=False)

    def __post_init__(self) -> None:
        self._gaps = deque(self.journal.gaps(0, self.journal.length))
        self._done = self.journal.size
        self._saver = Saver(self.part, self.options)

    def chunks(self) -> None:
        """Download what is missing, chunk by chunk; usable by several threads at once.

        Raises:
            ChangedError: The server has another state of the file.
            FetchError: The bytes cannot be downloaded or written.
            StoppedError: The job was stopped.
        """
        while (chunk := self._take()) is not None:
            begin, end = chunk
            self._span(begin, end, None)
            self._finished(begin, end)
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
            self._gaps.clear()
            self._under_way[0] = 0
        self._span(0, self.journal.length, answer)
        self._finished(0, self.journal.length)

    def _take(self) -> Span | None:
        with self._guard:
            if not self._gaps:
                return None
            begin, end = self._gaps.popleft()
            if end - begin > self.options.chunk:
                self._gaps.appendleft((begin + self.options.chunk, end))
                end = begin + self.options.chunk
            self._under_way[begin] = begin
            return begin, end

    def _finished(self, begin: int, end: int) -> None:
        with self._guard:
            del self._under_way[begin]
            self.journal = self.journal.with_bytes((begin, end))
            self._report()

    def _span(self, begin: int, end: int, answer: Answer | None) -> None:
        retries = Retries(self.url, self.arrival, self.options, keeps=True)
        with self.part.writer() as file:
            while (at := self._under_way[begin]) < end:
                try:
                    if answer is not None:
                        self._copy(answer, file, begin, end, retries)
                    else:
                        known = self.journal.version
                        with get(self.client, self.url, f"{at}-{end - 1}", known) as again:
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
            self.arrival.check()
            wanted = block[: end - at]
            try:
                # One writer at a time: the kernel lets two writers of one file spin.
                with self._disk:
                    write_all(file, wanted)
            except OSError as error:
                raise disk_failure(self.part.path, error) from None
            at += len(wanted)
            retries.succeeded()
            with self._guard:
                self._under_way[begin] = at
                self._done += len(wanted)
                self._report()
                self._saver.arrived(len(wanted), self._so_far)
            if at == end:
                return

    def _report(self) -> None:
        length = self.journal.length
        # Chunks are taken in order, so everything before the first unfinished one is there.
        missing = min(*self._under_way.values(), self._gaps[0][0] if self._gaps else length, length)
        if missing >= length:
            self.arrival.end(length)
        else:
            self.arrival.advance(missing)
        self.progress.update(self._done)

    def _so_far(self) -> Journal:
        """The journal, with what has arrived of unfinished chunks."""
        return self.journal.with_bytes(*self._under_way.items())

    def save(self) -> None:
        """Write the journal; for the end, when no thread downloads any more."""
        with contextlib.suppress(OSError):
            self.part.save(self._so_far())
