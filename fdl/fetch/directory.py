"""Read the directory of an archive from the available bytes, and plan the unpacking from it."""

from __future__ import annotations

from collections.abc import Callable

from fdl.fetch.failures import ArchiveError
from fdl.fetch.options import Options
from fdl.fetch.plan import Member, Select, plan
from fdl.fetch.zip_format import LARGEST_ENDING, Ending, NotZipError, find_ending, read_entries

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


def members(
    read: Read, found: Ending, select: Select, options: Options, where: str
) -> list[Member]:
    """Read the directory, check every member, and choose those to unpack.

    Raises:
        ArchiveError: The archive is damaged or unsafe; the message begins with ``where``.
    """
    try:
        entries = list(read_entries(read(found.offset, found.size), found))
    except NotZipError as error:
        raise _no_archive(where, error) from None
    return plan(entries, found.offset, select, options)


def _no_archive(where: str, error: NotZipError) -> ArchiveError:
    return ArchiveError(
        f"{where} is not a zip archive, or a damaged one: {error}",
        hint="fetch it once more; if that does not help, take it from somewhere else",
    )
