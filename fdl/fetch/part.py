"""The downloaded part of an archive: the part file, and the journal that describes it.

The journal is replaced after the bytes that it lists were written, and removed before any of them
is overwritten. So a process killed at any moment leaves a journal that lists too little at worst.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from fdl.fetch.failures import disk_failure
from fdl.fetch.options import Options


@dataclass(frozen=True, slots=True)
class Version:
    """Identifies one state of a file on a server; entries are empty if unknown."""

    etag: str = ""
    modified: str = ""
    length: int | None = None

    @property
    def validator(self) -> str:
        """The value for ``If-Range``: no weak tags, RFC 9110 section 13.1.5."""
        return self.modified if self.etag.startswith("W/") or not self.etag else self.etag

    def is_other(self, seen: Version) -> bool:
        """Whether an answer certainly belongs to another state of the file."""
        pairs = (
            (self.etag, seen.etag),
            (self.modified, seen.modified),
            (self.length, seen.length),
        )
        return any(mine and theirs and mine != theirs for mine, theirs in pairs)


Span = tuple[int, int]
"""Begin and end of some bytes of an archive."""


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same bytes as spans in order that do not touch each other."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif begin < end:
            found.append((begin, end))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Journal:
    """The content of a part file.

    Attributes:
        source: :func:`source` of the address it comes from; addresses may contain passwords.
        etag: Of the answer, empty for none.
        modified: ``Last-Modified`` of the answer, empty for none.
        length: Size of the whole archive.
        held: The bytes that are there, as :func:`joined` returns them.
    """

    source: str
    etag: str
    modified: str
    length: int
    held: tuple[Span, ...] = ()

    @property
    def version(self) -> Version:
        """The state of the file on the server."""
        return Version(self.etag, self.modified, self.length)

    @property
    def size(self) -> int:
        """Number of bytes that are there."""
        return sum(end - begin for begin, end in self.held)

    @property
    def prefix(self) -> int:
        """All bytes before this offset are there."""
        return self.held[0][1] if self.held and self.held[0][0] == 0 else 0

    def gaps(self, begin: int, end: int) -> list[Span]:
        """The bytes between two offsets that are missing, in order."""
        found, at = [], begin
        for first, last in (*self.held, (end, end)):
            if at < min(first, end):
                found.append((at, min(first, end)))
            at = max(at, last)
        return found

    def with_bytes(self, *spans: Span) -> Journal:
        """The journal after some bytes were written."""
        return replace(self, held=joined((*self.held, *spans)))

    def is_sound(self, size: int) -> bool:
        """Whether a part file of that size can match this journal."""
        ends = self.held[-1][1] if self.held else 0
        return joined(self.held) == self.held and ends <= min(self.length, size)


class Part:
    """A part file and its journal, which is in the same folder; writing may raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._journal = path.with_name(f"{path.name}.json")
        self._temporary = path.with_name(f"{path.name}.json.tmp")

    def load(self, url: str) -> Journal | None:
        """The journal of an earlier call for an address; None if there is none."""
        journal = _read(self.path, self._journal)
        return journal if journal and journal.source == source(url) else None

    def save(self, journal: Journal) -> None:
        """Write the journal."""
        self._temporary.write_text(json.dumps(asdict(journal)), encoding="utf-8")
        self._temporary.replace(self._journal)

    def begin(self) -> None:
        """Make an empty part file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.remove()
        self.path.touch()

    def writer(self) -> BinaryIO:
        """A handle to write with; one for each thread."""
        return cast(BinaryIO, self.path.open("r+b", buffering=0))

    def remove(self) -> None:
        """Remove both files."""
        self._journal.unlink(missing_ok=True)
        self._temporary.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


class Saver:
    """Saves the journal of a part often enough that little is lost if the process is killed.

    That is after some bytes, and after a second on a slow line.
    """

    def __init__(self, part: Part, options: Options) -> None:
        self._part = part
        self._options = options
        self._bytes = 0
        self._time = 0.0

    def arrived(self, count: int, journal: Callable[[], Journal]) -> None:
        """Record some new bytes, and save the journal if it is time.

        Raises:
            FetchError: It cannot be written.
        """
        self._bytes += count
        now = time.monotonic()
        often = now - self._time >= self._options.journal_seconds
        if often or self._bytes >= self._options.journal_every:
            try:
                self._part.save(journal())
            except OSError as error:
                raise disk_failure(self._part.path, error) from None
            self._bytes, self._time = 0, now


def is_resumable(path: Path) -> bool:
    """Whether a later call for the same address can continue a part file."""
    return _read(path, path.with_name(f"{path.name}.json")) is not None


def _read(path: Path, journal: Path) -> Journal | None:
    """The journal of a part file; None if there is none, or if it does not match the file."""
    try:
        fields = json.loads(journal.read_text(encoding="utf-8"))
        held = tuple((int(begin), int(end)) for begin, end in fields.pop("held"))
        found = Journal(**fields, held=held)
        size = path.stat().st_size
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None
    texts = (found.source, found.etag, found.modified)
    valid = type(found.length) is int and all(isinstance(one, str) for one in texts)
    return found if valid and found.is_sound(size) else None


def source(url: str) -> str:
    """The form of an address in a journal, because an address may contain a password."""
    return hashlib.sha256(url.encode()).hexdigest()


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write all data to an unbuffered file, whose write method may write less."""
    written = file.write(data)
    while written < len(data):
        written += file.write(data[written:])
