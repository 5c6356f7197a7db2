"""The downloaded part of an archive: the part file, and the journal that describes it.

The journal is replaced after the bytes that it lists were written, and removed before any of them
is overwritten. So a process killed at any moment leaves a journal that lists too little at worst.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from fdl.base.rewrite import put

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
        mine = source == self._source
        self.version: Version = version if mine else Version()
        self.held: list[Span] = held if mine else []

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
