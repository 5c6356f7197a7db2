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
from fdl.fetch.plan import (
    Member,
    Places,
    Select,
    check_packing,
    check_ratio,
    check_total,
)
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


class Walk:
    """Goes from one member to the next by their local headers.

    Only the directory says which members count, which are links and which are executable. So the
    result must be compared with the directory in the end; see :func:`agrees`.

    Args:
        archive: The file.
        arrival: How many bytes of it are there.
        select: Name of a file -> destination, None to leave it out.
        tree: The folder to unpack to.
        backlog: Receives the members of known size; closed at the end. Other members are unpacked
            immediately.
        options: Sizes and limits.
    """

    def __init__(
        self,
        archive: Path,
        arrival: Arrival,
        select: Select,
        tree: Tree,
        backlog: Backlog,
        options: Options,
    ) -> None:
        self._archive = archive
        self._arrival = arrival
        self._tree = tree
        self._backlog = backlog
        self._options = options
        self._places = Places(select)
        self._total = 0

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
            self._backlog.close()

    def _members(self) -> dict[int, Found] | None:
        found: dict[int, Found] = {}
        at = 0
        with Reader(self._archive, self._arrival) as reader:
            while (signature := reader.short(at, len(LOCAL))) == LOCAL:
                length = local_length(reader.short(at, LOCAL_SIZE))
                local = read_local(reader.short(at, length))
                if local.flags & DESCRIPTOR and local.method != DEFLATED:
                    return None
                sizes = local.crc, local.packed, local.size
                entry = Entry(local.name, 0, 0, local.flags, local.method, *sizes, at)
                found[at], at = self._member(reader, entry, at + length)
        if at == 0 and signature != END:
            raise ArchiveError("what the server sends is no zip archive", hint="check the address")
        return found if signature == CENTRAL else None

    def _member(self, reader: Reader, entry: Entry, begin: int) -> tuple[Found, int]:
        """Handle one member; returns it, and the position where the next one begins."""
        destination = self._places.find(entry.name)
        check_packing(entry, self._options)
        if entry.flags & DESCRIPTOR:
            return self._described(reader, entry, begin, destination)
        end = begin + entry.packed
        self._count(entry.size)
        if destination is not None:
            self._backlog.add(Member(entry, destination, False, False, end))
        return Found(entry.name, destination, entry.crc, entry.packed, entry.size), end

    def _described(
        self, reader: Reader, entry: Entry, begin: int, destination: str | None
    ) -> tuple[Found, int]:
        """Unpack a member whose size is known only after its end."""

        def check(content: Content) -> None:
            check_ratio(entry.name, content.packed, content.size, self._options)
            check_total(self._total + content.size, self._options)

        pieces = between(reader, begin, sys.maxsize, self._options.read)
        content = Content(pieces, entry.method, self._options.inflate)
        try:
            if destination is not None:
                self._tree.write(destination, content.blocks(check), executable=False)
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
        check_total(self._total, self._options)


def agrees(found: dict[int, Found], members: list[Member]) -> bool:
    """Whether exactly those members were unpacked that the directory lists."""
    return {offset: one for offset, one in found.items() if one.destination is not None} == {
        one.entry.offset: Found(
            one.entry.name, one.destination, one.entry.crc, one.entry.packed, one.entry.size
        )
        for one in members
    }
