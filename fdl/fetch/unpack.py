"""Unpack members of an archive by its directory, while the archive may still be arriving."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
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
"""Each member above this size gets a separate thread, as long as there are any."""

_TOGETHER = 32
"""Small members taken at once: they are done sooner than another thread would start."""

_WRONG = "its size or its checksum is wrong"

HASHED = 1 << 20
"""Bytes hashed at once."""


class Content:
    """The unpacked content of one member, measured while it is read.

    It is packed by ``method`` in the pieces, which may continue after the end of a deflate stream.

    Attributes:
        size: Number of unpacked bytes so far.
        crc: CRC-32 of these bytes.
    """

    def __init__(self, pieces: Iterator[bytes], method: int, most: int) -> None:
        self._pieces = pieces
        self._inflater = Inflater(most) if method == DEFLATED else None
        self.size = 0
        self.crc = 0

    @property
    def packed(self) -> int:
        """Bytes of the packed form that were needed so far."""
        return self._inflater.consumed if self._inflater else self.size

    def blocks(self, check: Callable[[Content], None]) -> Iterator[bytes]:
        """Yield the content in blocks; ``check`` refuses content that grows too large.

        Raises:
            DamagedError: The packed form is damaged.
        """
        source = self._inflater.whole(self._pieces) if self._inflater else self._pieces
        for block in source:
            self.size += len(block)
            self.crc = crc32(block, self.crc)
            check(self)
            yield block


class Backlog:
    """Members that wait to be unpacked; large ones apart, as one may be most of the archive."""

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
        """Record that no further member follows, or that no more are wanted."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self, *, large: bool) -> list[Member]:
        """Some small members, or one large one; empty if there are none and none will follow.

        With ``large``, large ones come first; otherwise small ones.
        """
        with self._changed:
            while not (self._large or self._small or self._closed):
                self._changed.wait()
            if self._large and (large or not self._small):
                return [self._large.pop(self._longest())]
            return [self._small.popleft() for _ in range(min(_TOGETHER, len(self._small)))]

    def _longest(self) -> int:
        """The large member to start with: the slowest one must not be left for the end."""
        there = self._arrival.prefix
        sizes = [member.entry.size * (member.entry.offset < there) for member in self._large]
        return sizes.index(max(sizes))


@dataclass(slots=True)
class Unpacking:
    """Unpacks members in several threads, each as soon as its bytes are there.

    Attributes:
        report: Receives the number of packed bytes that are done.
        backlog: The members to unpack.
    """

    archive: Path
    arrival: Arrival
    tree: Tree
    options: Options
    report: Callable[[int], None] | None = None
    backlog: Backlog = field(init=False)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _done: int = 0

    def __post_init__(self) -> None:
        self.backlog = Backlog(self.arrival)

    def add_all(self, members: Iterable[Member]) -> None:
        """Add all members; no further member follows."""
        self.backlog.add(*members)
        self.backlog.close()

    def jobs(self) -> list[Callable[[], None]]:
        """The jobs to run side by side; every other job prefers large members.

        The jobs raise FetchError if a member is damaged or cannot be written, and StoppedError if
        everything was stopped.
        """
        return [partial(self._work, index % 2 == 0) for index in range(self.options.workers)]

    def _work(self, large: bool) -> None:
        if not large:
            step_back()
        with Reader(self.archive, self.arrival) as reader:
            while members := self.backlog.take(large=large):
                for member in members:
                    self.arrival.check()
                    self._unpack(reader, member)

    def _unpack(self, reader: Reader, member: Member) -> None:
        entry = member.entry
        is_short = max(member.end - entry.offset, entry.size) <= self.options.read
        content = self._short_content if is_short else self._long_content
        try:
            blocks = content(reader, member)
            with ahead(blocks) if entry.size > _LARGE else nullcontext(blocks) as blocks:
                self.tree.write(member.destination, blocks, executable=member.is_executable)
        except (DamagedError, NotZipError) as error:
            raise damaged(entry.name, str(error)) from None
        except EndOfFileError:
            raise damaged(entry.name, "it breaks off") from None
        if self.report:
            with self._guard:
                self._done += entry.packed
                self.report(self._done)

    def _short_content(self, reader: Reader, member: Member) -> tuple[bytes]:
        """The content in one piece: most members are so short that this is fastest."""
        entry = member.entry
        data = reader.short(entry.offset, member.end - entry.offset)
        begin, end = _span(data, member)
        packed = data[begin:end]
        content = inflate(packed, entry.size) if entry.method == DEFLATED else packed
        if len(content) != entry.size or crc32(content, 0) != entry.crc:
            raise DamagedError(_WRONG)
        return (content,)

    def _long_content(self, reader: Reader, member: Member) -> Iterator[bytes]:
        entry, step = member.entry, self.options.read
        first = reader.exactly(entry.offset, min(step, member.end - entry.offset))
        begin, end = _span(first, member)

        def pieces() -> Iterator[bytes]:
            yield first[begin:end]
            yield from between(reader, entry.offset + len(first), entry.offset + end, step)

        def check(content: Content) -> None:
            if content.size > entry.size:
                raise DamagedError("it is larger than the archive says")

        content = Content(pieces(), entry.method, self.options.inflate)
        yield from content.blocks(check)
        if (content.packed, content.size, content.crc) != (entry.packed, entry.size, entry.crc):
            raise DamagedError(_WRONG)


def _span(data: bytes, member: Member) -> tuple[int, int]:
    """Begin and end of the packed form, counted from the header of the member."""
    entry = member.entry
    local = read_local(data)
    if (local.name, local.method) != (entry.name, entry.method):
        raise DamagedError("its header and the directory disagree")
    end = local.length + entry.packed
    if entry.offset + end > member.end:
        raise DamagedError("it overlaps the one after it")
    return local.length, end


def between(reader: Reader, begin: int, end: int, step: int) -> Iterator[bytes]:
    """The bytes between two offsets, as they arrive.

    Raises:
        EndOfFileError: The file ends before the second offset.
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
    """Compute the digest of a file while it arrives."""
    step_back()
    computed = hasher(algorithm)
    at = 0
    with Reader(archive, arrival) as reader:
        while data := reader.some(at, HASHED):
            computed.update(data)
            at += len(data)
    return Digest(algorithm, computed.hexdigest())
