"""Unpack an archive from its beginning, before its directory has arrived."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from fdl.fetch.arrival import Arrival, EndOfFileError, Reader
from fdl.fetch.failures import ArchiveError
from fdl.fetch.inflate import DEFLATED, DamagedError
from fdl.fetch.options import Options
from fdl.fetch.plan import Member, Places, check_packing, check_ratio, check_total
from fdl.fetch.tree import Tree
from fdl.fetch.unpack import Backlog, Content, between, damaged
from fdl.fetch.zip_format import (
    CENTRAL,
    DESCRIPTOR,
    END,
    LARGEST_DESCRIPTOR,
    LOCAL,
    LOCAL_SIZE,
    Entry,
    NotZipError,
    descriptor_length,
    local_length,
    read_local,
)


@dataclass(frozen=True, slots=True)
class Found:
    """A member found at one offset of an archive, and unpacked if it was wanted."""

    name: str
    destination: str | None
    crc: int
    packed: int
    size: int


@dataclass(slots=True)
class Walk:
    """Goes from one member to the next by their local headers.

    Only the directory says which members count, which are links and which are executable. So the
    result must be compared with the directory in the end; see :func:`agrees`.

    Attributes:
        backlog: Receives the members of known size; closed at the end. Other members are unpacked
            immediately.
    """

    archive: Path
    arrival: Arrival
    places: Places
    tree: Tree
    backlog: Backlog
    options: Options
    _total: int = 0

    def run(self) -> dict[int, Found] | None:
        """Unpack all wanted members.

        Returns:
            Offset -> the member found there. None if the archive must be unpacked by its directory,
            because its local headers do not contain enough.

        Raises:
            FetchError: A member is damaged, unsafe, or cannot be written.
            StoppedError: The job was stopped.
        """
        try:
            return self._members()
        except (EndOfFileError, NotZipError):
            return None
        finally:
            self.backlog.close()

    def _members(self) -> dict[int, Found] | None:
        found: dict[int, Found] = {}
        at = 0
        with Reader(self.archive, self.arrival) as reader:
            while (signature := reader.short(at, len(LOCAL))) == LOCAL:
                length = local_length(reader.short(at, LOCAL_SIZE))
                local = read_local(reader.short(at, length))
                if local.flags & DESCRIPTOR and local.method != DEFLATED:
                    return None
                sizes = local.crc, local.packed, local.size
                entry = Entry(local.name, 0, 0, local.flags, local.method, *sizes, at)
                found[at], at = self._member(reader, entry, at + length)
        if at == 0 and signature != END:
            raise ArchiveError("the server did not send a zip archive", hint="check the address")
        return found if signature == CENTRAL else None

    def _member(self, reader: Reader, entry: Entry, begin: int) -> tuple[Found, int]:
        """Handle one member; returns it, and the position where the next one begins."""
        destination = self.places.find(entry.name)
        check_packing(entry, self.options)
        if entry.flags & DESCRIPTOR:
            return self._described(reader, entry, begin, destination)
        end = begin + entry.packed
        self._count(entry.size)
        if destination is not None:
            self.backlog.add(Member(entry, destination, False, False, end))
        return Found(entry.name, destination, entry.crc, entry.packed, entry.size), end

    def _described(
        self, reader: Reader, entry: Entry, begin: int, destination: str | None
    ) -> tuple[Found, int]:
        """Unpack a member whose size is known only after its end."""

        def check(content: Content) -> None:
            check_ratio(entry.name, content.packed, content.size, self.options)
            check_total(self._total + content.size, self.options)

        pieces = between(reader, begin, sys.maxsize, self.options.read)
        content = Content(pieces, entry.method, self.options.inflate)
        try:
            if destination is not None:
                self.tree.write(destination, content.blocks(check), executable=False)
            else:
                deque(content.blocks(check), maxlen=0)
        except DamagedError as error:
            raise damaged(entry.name, str(error)) from None
        self._count(content.size)
        end = begin + content.packed
        behind = reader.at_most(end, LARGEST_DESCRIPTOR)
        end += descriptor_length(behind, content.crc, content.packed, content.size)
        return Found(entry.name, destination, content.crc, content.packed, content.size), end

    def _count(self, size: int) -> None:
        self._total += size
        check_total(self._total, self.options)


def agrees(found: dict[int, Found], members: list[Member]) -> bool:
    """Whether exactly those members were unpacked that the directory lists."""
    return {offset: one for offset, one in found.items() if one.destination is not None} == {
        one.entry.offset: Found(
            one.entry.name, one.destination, one.entry.crc, one.entry.packed, one.entry.size
        )
        for one in members
    }
