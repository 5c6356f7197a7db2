"""Unpack a complete archive, and do the last steps of every way of unpacking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fdl.errors import FetchError
from fdl.fetch import directory
from fdl.fetch.arrival import Arrival
from fdl.fetch.digest import Algorithm, Digest
from fdl.fetch.failures import ArchiveError, require_space
from fdl.fetch.options import Options
from fdl.fetch.plan import Member, Select
from fdl.fetch.together import Job, together
from fdl.fetch.tree import Tree
from fdl.fetch.unpack import Unpacking, digest
from fdl.progress import Progress

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
    try:
        with archive.open("rb") as file:
            length = file.seek(0, 2)
        chosen = plan_whole(archive, length, select, options, str(archive))
        require_space(target, space(chosen), archive, 0)
        progress.start(sum(member.entry.packed for member in chosen))
        tree = Tree(target)
        algorithm = "sha256" if sha256 else algorithm
        actual = unpack_whole(archive, length, chosen, tree, algorithm, options, progress.update)
    except OSError as error:
        raise FetchError(f"cannot read {archive}: {error.strerror}") from None
    tree.finish(chosen, modes=False)
    return summary(chosen, actual, sha256, str(archive))


def plan_whole(
    archive: Path, length: int, select: Select, options: Options, where: str
) -> list[Member]:
    """Read the directory of an archive, which must be complete, and choose what to unpack.

    Raises:
        ArchiveError: It is damaged or unsafe; the message begins with ``where``.
        OSError: It cannot be read.
    """
    read = partial(read_at, archive)
    found = directory.ending(read, length, options, where)
    return directory.members(read, found, select, options, where)


def unpack_whole(
    archive: Path,
    length: int,
    members: Sequence[Member],
    tree: Tree,
    algorithm: Algorithm,
    options: Options,
    report: Callable[[int], None] | None = None,
) -> Digest:
    """Unpack members of a complete archive, and return its digest.

    Raises:
        FetchError: It is damaged, or a file cannot be written.
        OSError: It cannot be read.
    """
    arrival = Arrival(length, length)
    unpacking = Unpacking(archive, arrival, tree, options, report)
    unpacking.add_all(members)
    jobs: list[Job] = [partial(digest, archive, arrival, algorithm), *unpacking.jobs()]
    actual: Digest = together(jobs, arrival.stop)[0]
    return actual


def space(members: Sequence[Member]) -> int:
    """Disk space that members take, in bytes."""
    return sum(-(-member.entry.size // _BLOCK) * _BLOCK for member in members)


def summary(members: Sequence[Member], actual: Digest, sha256: str | None, where: str) -> Unpacked:
    """Check the digest, and return the result of unpacking.

    Raises:
        ArchiveError: The digest differs from the expected one.
    """
    if sha256 is not None and actual.value != sha256.lower():
        raise ArchiveError(
            f"{where} is not the archive that is expected: its SHA-256 is {actual.value} "
            f"and has to be {sha256.lower()}",
            hint="nothing was installed; type the same again, and if the digest stays wrong, "
            "do not use that source",
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
