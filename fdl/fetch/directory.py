"""Read the directory of an archive from the available bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from fdl.fetch.failures import ArchiveError
from fdl.fetch.options import Options
from fdl.fetch.plan import Select
from fdl.fetch.zip_format import (
    CENTRAL,
    CENTRAL_SIZE,
    LARGEST_ENDING,
    Ending,
    Entry,
    NotZipError,
    find_ending,
    read_entries,
)

Read = Callable[[int, int], bytes]
"""Offset, size -> the bytes there."""


def ending(read: Read, length: int, options: Options, where: str) -> Ending:
    """Find the directory of an archive of some length; ``read`` reads from its end.

    Raises:
        ArchiveError: It is not a zip archive, or it is damaged; the message begins with ``where``.
    """
    size = min(length, LARGEST_ENDING)
    try:
        found = find_ending(read(length - size, size), length)
    except NotZipError as error:
        raise _no_archive(where, error) from None
    if found.size > options.largest_directory:
        raise ArchiveError(f"{where} has a directory of {found.size / 1e6:.0f} MB; it is refused")
    return found


@dataclass(frozen=True, slots=True)
class Listing:
    """The members of an archive, as its directory lists them; nothing is checked yet.

    Attributes:
        entries: All entries.
        chosen: Those to unpack.
        offset: The position where the directory begins.
    """

    entries: Sequence[Entry]
    chosen: Sequence[Entry]
    offset: int


def listing(read: Read, found: Ending, select: Select, where: str) -> Listing:
    """Read the directory; the message of an error begins with ``where``.

    Raises:
        ArchiveError: The archive is damaged.
    """
    try:
        entries = list(read_entries(read(found.offset, found.size), found))
    except NotZipError as error:
        raise _no_archive(where, error) from None
    chosen = [one for one in entries if one.name[-1:] != "/" and select(one.name) is not None]
    return Listing(entries, chosen, found.offset)


def find(directory: bytes, name: str) -> Entry | None:
    """The entry of one member; a fraction of the time that reading all entries takes."""
    raw = name.encode()
    at = directory.find(raw)
    while at >= 0:
        begin = at - CENTRAL_SIZE
        if begin >= 0 and directory.startswith(CENTRAL, begin):
            with suppress(NotZipError, StopIteration):
                entry = next(read_entries(directory[begin:], Ending(0, 0, 1)))
                if entry.name == name:
                    return entry
        at = directory.find(raw, at + 1)
    return None


def _no_archive(where: str, error: NotZipError) -> ArchiveError:
    return ArchiveError(
        f"{where} is not a zip archive, or a damaged one: {error}",
        hint="fetch it once more; if that does not help, take it from somewhere else",
    )
