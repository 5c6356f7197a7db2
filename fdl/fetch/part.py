"""The downloaded part of an archive: the part file, and the journal that describes it.

The journal is replaced after the bytes that it lists were written, and removed before any of them
is overwritten. So a process killed at any moment leaves a journal that lists too little at worst.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, cast


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


@dataclass(frozen=True, slots=True)
class Journal:
    """The content of a part file.

    Attributes:
        source: :func:`source` of the address it comes from; addresses may contain passwords.
        etag: Of the answer, empty for none.
        modified: ``Last-Modified`` of the answer, empty for none.
        length: Size of the whole archive.
        prefix: All bytes before this offset are there.
        tail: All bytes from this offset on are there; ``length`` for none.
    """

    source: str
    etag: str
    modified: str
    length: int
    prefix: int = 0
    tail: int = -1

    @property
    def version(self) -> Version:
        """The state of the file on the server."""
        return Version(self.etag, self.modified, self.length)

    def is_sound(self, size: int) -> bool:
        """Whether a part file of that size can match this journal."""
        return 0 <= self.prefix <= self.tail <= self.length and size >= (
            self.prefix if self.tail == self.length else self.length
        )


class Part:
    """A part file and its journal, which is in the same folder; writing may raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._journal = path.with_name(f"{path.name}.json")
        self._temporary = path.with_name(f"{path.name}.json.tmp")

    def load(self, url: str) -> Journal | None:
        """The journal of an earlier call for an address; None if there is none."""
        try:
            fields = json.loads(self._journal.read_text(encoding="utf-8"))
            journal = Journal(**fields)
            kinds = {name: type(value) for name, value in asdict(journal).items()}
            size = self.path.stat().st_size
        except (OSError, ValueError, TypeError):
            return None
        expected = {"source": str, "etag": str, "modified": str}
        numbers = {"length": int, "prefix": int, "tail": int}
        if kinds != expected | numbers or journal.source != source(url):
            return None
        return journal if journal.is_sound(size) else None

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


def is_resumable(path: Path) -> bool:
    """Whether a later call for the same address can continue a part file."""
    try:
        fields = json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8"))
        return Journal(**fields).is_sound(path.stat().st_size)
    except (OSError, ValueError, TypeError):
        return False


def source(url: str) -> str:
    """The form of an address in a journal, because an address may contain a password."""
    return hashlib.sha256(url.encode()).hexdigest()


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write all data to an unbuffered file, whose write method may write less."""
    written = file.write(data)
    while written < len(data):
        written += file.write(data[written:])
