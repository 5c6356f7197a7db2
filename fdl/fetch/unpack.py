"""Unpacking members from an archive that may still be arriving, by its directory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from fdl.fetch.arrival import Arrival, EndOfFileError, Reader
from fdl.fetch.digest import Algorithm, Digest, hasher
from fdl.fetch.failures import ArchiveError
from fdl.fetch.inflate import DEFLATED, DamagedError, Inflater, crc32, inflate
from fdl.fetch.options import Options
from fdl.fetch.plan import Member
from fdl.fetch.together import ahead, step_back
from fdl.fetch.tree import Tree
from fdl.fetch.zip_format import NotZipError, read_local

_LARGE = 4 << 20
"""Members beyond this size get a thread of their own as long as there are any."""

_TOGETHER = 32
"""Small members that are taken at a time: they are done before another thread is told."""

_WRONG = "its size or its checksum is wrong"

HASHED = 1 << 20
"""Bytes that are hashed at a time."""


class Content:
    """What one member unpacks to, measured while it goes by.

    Args:
        pieces: Its packed form; may go on after the end of a deflated one.
        method: How it is packed.
        most: Bytes that may come out at a time.

    Attributes:
        packed: How long the packed form is, once everything was read.
        size: How much has come out so far.
        crc: CRC-32 of that.
    """

    def __init__(self, pieces: Iterator[bytes], method: int, most: int) -> None:
        self._pieces = pieces
        self._inflater = Inflater(most) if method == DEFLATED else None
        self._stored = 0
        self.size = 0
        self.crc = 0

    @property
    def packed(self) -> int:
        """Bytes of the packed form that were needed so far."""
        return self._inflater.consumed if self._inflater else self.size

    def blocks(self, check: Callable[[Content], None]) -> Iterator[bytes]:
        """The content.

        Args:
            check: Called before each block is given out; refuses what grows too large.

        Raises:
            DamagedError: The packed form is.
        """
        source = self._inflater.whole(self._pieces) if self._inflater else self._pieces
        for block in source:
            self.size += len(block)
            self.crc = crc32(block, self.crc)
            check(self)
            yield block


class Backlog:
    """Members that wait to be unpacked; large ones apart, because one of them can be most of it.

    Args:
        arrival: How much of the archive is there.
    """

    def __init__(self, arrival: Arrival) -> None:
        self._arrival = arrival
        self._changed = threading.Condition()
        self._large: list[Member] = []
        self._small: deque[Member] = deque()
        self._closed = False

    def add(self, *members: Member) -> None:
        """Append members, in the order of the archive."""
        with self._changed:
            for member in members:
                (self._large if member.entry.size > _LARGE else self._small).append(member)
            self._changed.notify_all()

    def close(self) -> None:
        """Say that no member follows, or that none is wanted any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self, *, large: bool) -> list[Member]:
        """A large member or some small ones; nothing when there are none and none follow.

        Args:
            large: Whether large ones come first; otherwise small ones do.
        """
        with self._changed:
            while not (self._large or self._small or self._closed):
                self._changed.wait()
            if self._large and (large or not self._small):
                return [self._large.pop(self._longest())]
            return [self._small.popleft() for _ in range(min(_TOGETHER, len(self._small)))]

    def _longest(self) -> int:
        """Which large member to begin with: what takes longest is not to be left for the end."""
        there = self._arrival.prefix
        sizes = [member.entry.size * (member.entry.offset < there) for member in self._large]
        return sizes.index(max(sizes))


class Unpacking:
    """Unpacks members in several threads, each as soon as its bytes are there.

    Args:
        archive: The file.
        arrival: How much of it is there.
        tree: Where to unpack to.
        options: Sizes.
        report: Is told how many packed bytes are done.
    """

    def __init__(
        self,
        archive: Path,
        arrival: Arrival,
        tree: Tree,
        options: Options,
        report: Callable[[int], None] | None = None,
    ) -> None:
        self._archive = archive
        self._arrival = arrival
        self._tree = tree
        self._options = options
        self._guard = threading.Lock()
        self._report = report
        self._done = 0
        self.backlog = Backlog(arrival)

    def add_all(self, members: Iterable[Member]) -> None:
        """Take in all members there are."""
        self.backlog.add(*members)
        self.backlog.close()

    def jobs(self) -> list[Callable[[], None]]:
        """What to run side by side; every other job prefers large members.

        The jobs raise FetchError when a member is damaged or cannot be written, and StoppedError
        when everything was given up.
        """
        return [partial(self._work, index % 2 == 0) for index in range(self._options.workers)]

    def _work(self, large: bool) -> None:
        if not large:
            step_back()
        with Reader(self._archive, self._arrival) as reader:
            while members := self.backlog.take(large=large):
                for member in members:
                    self._arrival.check()
                    self._unpack(reader, member)

    def _unpack(self, reader: Reader, member: Member) -> None:
        entry = member.entry
        is_short = max(member.end - entry.offset, entry.size) <= self._options.read
        content = self._short_content if is_short else self._long_content
        try:
            blocks = content(reader, member)
            with ahead(blocks) if entry.size > _LARGE else nullcontext(blocks) as blocks:
                self._tree.write(member.destination, blocks, executable=member.is_executable)
        except (DamagedError, NotZipError) as error:
            raise damaged(entry.name, str(error)) from None
        except EndOfFileError:
            raise damaged(entry.name, "it breaks off") from None
        if self._report:
            with self._guard:
                self._done += entry.packed
                self._report(self._done)

    def _short_content(self, reader: Reader, member: Member) -> tuple[bytes]:
        """The content in one piece: most members are so short that anything else costs more."""
        entry = member.entry
        data = reader.short(entry.offset, member.end - entry.offset)
        begin, end = _span(data, member)
        packed = data[begin:end]
        content = inflate(packed, entry.size) if entry.method == DEFLATED else packed
        if len(content) != entry.size or crc32(content, 0) != entry.crc:
            raise DamagedError(_WRONG)
        return (content,)

    def _long_content(self, reader: Reader, member: Member) -> Iterator[bytes]:
        entry, step = member.entry, self._options.read
        first = reader.exactly(entry.offset, min(step, member.end - entry.offset))
        begin, end = _span(first, member)

        def pieces() -> Iterator[bytes]:
            yield first[begin:end]
            yield from between(reader, entry.offset + len(first), entry.offset + end, step)

        def check(content: Content) -> None:
            if content.size > entry.size:
                raise DamagedError("it is larger than the archive says")

        content = Content(pieces(), entry.method, self._options.inflate)
        yield from content.blocks(check)
        if (content.packed, content.size, content.crc) != (entry.packed, entry.size, entry.crc):
            raise DamagedError(_WRONG)


def _span(data: bytes, member: Member) -> tuple[int, int]:
    """Where the packed form begins and ends, counted from the header of the member."""
    entry = member.entry
    local = read_local(data)
    if (local.name, local.method) != (entry.name, entry.method):
        raise DamagedError("its header and the directory disagree")
    end = local.length + entry.packed
    if entry.offset + end > member.end:
        raise DamagedError("it overlaps the one behind it")
    return local.length, end


def between(reader: Reader, begin: int, end: int, step: int) -> Iterator[bytes]:
    """What stands between two offsets, as it arrives.

    Raises:
        EndOfFileError: The file ends before.
        StoppedError: The job was given up.
    """
    while begin < end:
        piece = reader.some(begin, min(step, end - begin))
        if not piece:
            raise EndOfFileError
        begin += len(piece)
        yield piece


def damaged(name: str, reason: str) -> ArchiveError:
    """The error for one member."""
    return ArchiveError(
        f"the archive is damaged: its member {name!r} cannot be unpacked, {reason}",
        hint="fetch it once more; if that does not help, take it from somewhere else",
    )


def digest(archive: Path, arrival: Arrival, algorithm: Algorithm) -> Digest:
    """The digest of a file, computed while it arrives.

    Raises:
        StoppedError: The job was given up.
    """
    step_back()
    computed = hasher(algorithm)
    at = 0
    with Reader(archive, arrival) as reader:
        while data := reader.some(at, HASHED):
            computed.update(data)
            at += len(data)
    return Digest(algorithm, computed.hexdigest())
