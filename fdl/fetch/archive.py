"""Unpack a complete archive, and do the last steps of every way of unpacking."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from fdl.errors import FetchError
from fdl.fetch import directory
from fdl.fetch.arrival import Arrival
from fdl.fetch.digest import Algorithm, Digest
from fdl.fetch.failures import ArchiveError, require_space
from fdl.fetch.inflate import DEFLATED, DamagedError, inflate
from fdl.fetch.options import Options
from fdl.fetch.plan import Member, Select, plan
from fdl.fetch.together import Job, together
from fdl.fetch.tree import Tree
from fdl.fetch.unpack import Unpacking, digest
from fdl.fetch.zip_format import LOCAL_SIZE, Entry, NotZipError, local_length
from fdl.progress import Progress

T = TypeVar("T")

_SMALL = 1 << 20

_BLOCK = 4096
"""The usual allocation unit of file systems, in bytes."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The result of unpacking.

    Attributes:
        files: Number of files and links.
        bytes: Their total size.
        digest: Digest of the whole archive.
        url: The origin of the archive: an address, or the path of a file.
    """

    files: int
    bytes: int
    digest: Digest
    url: str


def unpack_file(
    archive: Path,
    target: Path,
    *,
    select: Select,
    sha256: str | None = None,
    algorithm: Algorithm = "blake3",
    progress: Progress,
    options: Options = Options(),  # noqa: B008 - frozen
) -> Unpacked:
    """Unpack a zip archive on this machine.

    The result and the arguments are those of :func:`fdl.fetch.download.unpack_url`.

    Raises:
        FetchError: The archive cannot be read, is damaged, is unsafe, has another digest than
            expected, or the disk is full.
    """
    algorithm = "sha256" if sha256 else algorithm
    digesting = partial(digest, archive, algorithm=algorithm)
    members, actual = _unpack(archive, target, select, digesting, progress, options)
    return summary(members, actual, sha256, str(archive))


def extract_file(
    archive: Path,
    target: Path,
    *,
    select: Select,
    progress: Progress,
    options: Options = Options(),  # noqa: B008 - frozen
) -> None:
    """Unpack a zip archive on this machine without its digest, for files that nobody compares.

    Raises:
        FetchError: The archive cannot be read, is damaged or unsafe, or the disk is full.
    """
    _unpack(archive, target, select, lambda _: None, progress, options)


def _unpack(
    archive: Path,
    target: Path,
    select: Select,
    beside: Callable[[Arrival], T],
    progress: Progress,
    options: Options,
) -> tuple[list[Member], T]:
    try:
        with archive.open("rb") as file:
            length = file.seek(0, 2)
        listed = read_listing(archive, length, select, options, str(archive))
        require_space(target, space(listed.chosen), archive, 0)
        progress.start(sum(entry.packed for entry in listed.chosen))
        tree = Tree(target)
        found = unpack_whole(
            archive, length, listed, select, tree, beside, options, progress.update
        )
    except OSError as error:
        raise FetchError(f"cannot read {archive}: {error.strerror}") from None
    tree.finish(found[0], modes=False)
    return found


def read_listing(
    archive: Path, length: int, select: Select, options: Options, where: str
) -> directory.Listing:
    """Read the directory of an archive, which must be complete.

    Raises:
        ArchiveError: It is damaged; the message begins with ``where``.
        OSError: It cannot be read.
    """
    read = partial(read_at, archive)
    found = directory.ending(read, length, options, where)
    return directory.listing(read, found, select, where)


def planning(
    listed: directory.Listing, select: Select, unpacking: Unpacking
) -> Callable[[], list[Member]]:
    """The job that checks all members and lets those be unpacked that are wanted.

    Meanwhile, other threads download and compute the digest.
    """

    def run() -> list[Member]:
        try:
            members = plan(listed.entries, listed.offset, select, unpacking.options)
            unpacking.backlog.add(*members)
            return members
        finally:
            unpacking.backlog.close()

    return run


def unpack_whole(
    archive: Path,
    length: int,
    listed: directory.Listing,
    select: Select,
    tree: Tree,
    beside: Callable[[Arrival], T],
    options: Options,
    report: Callable[[int], None] | None = None,
) -> tuple[list[Member], T]:
    """Unpack members of a complete archive, and read it ``beside`` that for its digest.

    Returns:
        The members, and the result of ``beside``.

    Raises:
        FetchError: It is damaged or unsafe, or a file cannot be written.
        OSError: It cannot be read.
    """
    arrival = Arrival(length, length)
    unpacking = Unpacking(archive, arrival, tree, options, report)
    jobs: list[Job] = [
        planning(listed, select, unpacking),
        partial(beside, arrival),
        *unpacking.jobs(),
    ]
    members, found, *_ = together(jobs, arrival.stop)
    return members, found


def read_members(
    archive: Path,
    names: Sequence[str],
    options: Options = Options(),  # noqa: B008 - frozen
) -> tuple[dict[str, bytes], bytes]:
    """The content of some small members of an archive, and the bytes of its directory.

    The result has the names that are there. Members above 1 MiB are left out.

    Raises:
        FetchError: It cannot be read, or is damaged.
    """
    found: dict[str, bytes] = {}
    read = partial(read_at, archive)
    try:
        ending = directory.ending(read, archive.stat().st_size, options, str(archive))
        listed = read(ending.offset, ending.size)
        for name in names:
            entry = directory.find(listed, name)
            if entry is None or max(entry.size, entry.packed) > _SMALL:
                continue
            begin = entry.offset + local_length(read(entry.offset, LOCAL_SIZE))
            packed = read(begin, entry.packed)
            found[name] = inflate(packed, entry.size) if entry.method == DEFLATED else packed
    except OSError as error:
        raise FetchError(f"cannot read {archive}: {error.strerror}") from None
    except (NotZipError, DamagedError, struct.error) as error:
        raise ArchiveError(f"{archive} is damaged: {error}") from None
    return found, listed


def space(entries: Sequence[Entry]) -> int:
    """Disk space that unpacked members take, in bytes."""
    return sum(-(-entry.size // _BLOCK) * _BLOCK for entry in entries)


def summary(members: Sequence[Member], actual: Digest, sha256: str | None, where: str) -> Unpacked:
    """Check the digest, and return the result of unpacking.

    Raises:
        ArchiveError: The digest differs from the expected one.
    """
    if sha256 is not None and actual.value != sha256.lower():
        raise ArchiveError(
            f"{where} is not the archive that is expected: its SHA-256 is {actual.value} "
            f"and has to be {sha256.lower()}",
            hint="nothing was installed; type the same command again, and if the digest stays "
            "wrong, do not use that source",
        )
    return Unpacked(len(members), sum(member.entry.size for member in members), actual, where)


def read_at(archive: Path, offset: int, size: int) -> bytes:
    """Some bytes of a file.

    Raises:
        OSError: It cannot be read.
    """
    with archive.open("rb") as file:
        file.seek(offset)
        return file.read(size)
