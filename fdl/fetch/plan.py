"""Decide from the directory what to unpack and where, before anything is written.

An archive is refused as a whole if one of its members could reach outside the target, overwrite
another member, or is not a file, a folder or a link. This holds for unwanted members too.
"""

from __future__ import annotations

import posixpath
import re
import stat
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fdl.fetch.failures import ArchiveError
from fdl.fetch.inflate import DEFLATED, STORED
from fdl.fetch.options import Options
from fdl.fetch.zip_format import ENCRYPTED, LOCAL_SIZE, PATCH, Entry

Select = Callable[[str], str | None]
"""Name of a file -> its path relative to the target, or None to leave it out."""

_UNIX = (3, 19)
"""Systems whose attributes are a Unix mode: Unix itself and macOS."""

_FOLDS_CASE = sys.platform in ("win32", "darwin")

_LARGEST_LINK = 4096

_SMALL = 1 << 20
"""Members up to this size may have any ratio of size to packed size."""

_ORDINARY = re.compile(r"(?:[\w+-][\w+. -]*/)*[\w+-][\w+. -]*/?", re.ASCII)
"""Names that need no further checks; nearly all names match."""

_CONTROL = re.compile(r"[\0-\x1f\x7f]")

_STEPS = frozenset(("", ".", ".."))
"""Parts that a name must not have."""

_NAME_LIMIT = 60

_DEEPEST = 100
"""The most folders above a file; creating deeper folders would exhaust Python's stack."""


class Member(NamedTuple):
    """A file or link to unpack.

    Attributes:
        entry: Its entry in the directory.
        destination: Its path, relative to the target.
        is_link: Whether its content is the target of a symbolic link.
        is_executable: Whether it gets the execute bit.
        end: The position where the next member, or the directory, begins.
    """

    entry: Entry
    destination: str
    is_link: bool
    is_executable: bool
    end: int


def plan(
    entries: Sequence[Entry], directory: int, select: Select, options: Options
) -> list[Member]:
    """Check all members and choose those to unpack, in the order of the archive.

    Folders are created for the files in them; empty folders are left out. ``directory`` is the
    position where the directory begins.

    Raises:
        ArchiveError: A member is unsafe; the message names it.
    """
    ordered = sorted(entries, key=lambda entry: entry.offset)
    ends = [entry.offset for entry in ordered[1:]] + [directory]
    places = Places(select)
    members: list[Member] = []
    for entry, end in zip(ordered, ends, strict=False):
        check_packing(entry, options)
        if entry.offset + LOCAL_SIZE + len(entry.name) + entry.packed > end:
            raise refused(entry.name, "overlaps the one after it")
        is_link = _is_link(entry)
        destination = places.find(entry.name)
        if destination is not None:
            executable = entry.system in _UNIX and bool(entry.attributes >> 16 & 0o111)
            members.append(Member(entry, destination, is_link, executable, end))
    check_total(sum(entry.size for entry in entries), options)
    return members


class Places:
    """Decides where members go, and checks that they do not conflict."""

    def __init__(self, select: Select) -> None:
        self._select = select
        self._names: set[str] = set()
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def find(self, name: str) -> str | None:
        """The destination of a member; None for folders and members that are left out.

        Raises:
            ArchiveError: Its name is unsafe, or it conflicts with another member.
        """
        key = _key(check_name(name).removesuffix("/"))
        if key in self._names:
            raise refused(name, "appears twice")
        self._names.add(key)
        destination = None if name.endswith("/") else self._select(name)
        if destination is not None:
            self._take(name, _key(check_name(destination)))
        return destination

    def _take(self, name: str, key: str) -> None:
        if key in self._files:
            raise refused(name, "would be unpacked over another one")
        if key in self._folders:
            raise refused(name, "is a file where others need a folder")
        self._files.add(key)
        folder = key.rpartition("/")[0]
        while folder and folder not in self._folders:
            if folder in self._files:
                raise refused(name, "lies below another member that is not a folder")
            self._folders.add(folder)
            folder = folder.rpartition("/")[0]


def refused(name: str, reason: str) -> ArchiveError:
    """The error for one member."""
    shown = name if len(name) <= _NAME_LIMIT else name[: _NAME_LIMIT - 1] + "…"
    return ArchiveError(
        f"the archive is refused: its member {shown!r} {reason}",
        hint="nothing was unpacked; take the archive from a place you trust",
    )


def check_name(name: str) -> str:
    """Return a name if it stays inside any folder it is unpacked to.

    Raises:
        ArchiveError: It could lead outside.
    """
    if name.count("/") > _DEEPEST:
        raise refused(name, f"is in more than {_DEEPEST} folders")
    if _ORDINARY.fullmatch(name):
        return name
    if not name or _CONTROL.search(name):
        raise refused(name, "has no proper name")
    if "\\" in name or (":" in name and (sys.platform == "win32" or name[1] == ":")):
        raise refused(name, "has a name that means something else on Windows")
    parts = name.removesuffix("/").split("/")
    if not _STEPS.isdisjoint(parts):
        if name.startswith("/"):
            raise refused(name, "has an absolute name")
        if ".." in parts:
            raise refused(name, "would be unpacked outside its folder")
        raise refused(name, "has no proper name")
    return name


def check_packing(entry: Entry, options: Options) -> None:
    """Check that a member can be unpacked, and that its sizes are credible.

    Raises:
        ArchiveError: It cannot, or they are not.
    """
    if entry.flags & ENCRYPTED:
        raise refused(entry.name, "is encrypted")
    if entry.method not in (STORED, DEFLATED) or entry.flags & PATCH:
        raise refused(entry.name, f"is packed in a way fdl does not know ({entry.method})")
    if entry.method == STORED and entry.packed != entry.size:
        raise refused(entry.name, "is stored with two different sizes")
    check_ratio(entry.name, entry.packed, entry.size, options)


def check_ratio(name: str, packed: int, size: int, options: Options) -> None:
    """Check that the ratio of a member's size to its packed size is within the limit.

    Raises:
        ArchiveError: The ratio is too large.
    """
    if size > _SMALL and size > packed * options.largest_ratio:
        raise refused(name, f"would unpack to over {options.largest_ratio} times its size")


def check_total(total: int, options: Options) -> None:
    """Check the total size of all unpacked members.

    Raises:
        ArchiveError: It is above the limit.
    """
    if total > options.largest_total:
        raise ArchiveError(
            f"the archive is refused: it would unpack to {total / 1e9:.1f} GB, and the most that "
            f"is taken is {options.largest_total / 1e9:.1f} GB",
            hint="nothing was unpacked; take the archive from a place you trust",
        )


def check_link(member: Member, text: str) -> None:
    """Check the target of a link.

    Only leading ``..`` are allowed, because the folders above are real folders: no member is below
    a link. A later ``..`` could go up through a second link.

    Raises:
        ArchiveError: The link leads, or could lead, outside the target.
    """
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(member.destination), text))
    steps = text.split("/")
    climbs = next((index for index, step in enumerate(steps) if step != ".."), len(steps))
    plain = bool(text) and not (set(text) & {"\\", "\0"}) and not re.match("[A-Za-z]:|/", text)
    if not plain or ".." in steps[climbs:] or inside == ".." or inside.startswith("../"):
        raise refused(member.entry.name, f"is a link that leads outside its folder ({text!r})")


def _is_link(entry: Entry) -> bool:
    named = entry.name.endswith("/")
    kind = stat.S_IFMT(entry.attributes >> 16) if entry.system in _UNIX else 0
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
        raise refused(entry.name, "is neither a file nor a folder nor a link")
    if named != (kind == stat.S_IFDIR) and (kind or (named and entry.size)):
        raise refused(entry.name, "is a folder by its name or by its kind, and not by both")
    if kind == stat.S_IFLNK and entry.size > _LARGEST_LINK:
        raise refused(entry.name, "is a link of improbable length")
    return kind == stat.S_IFLNK


def _key(name: str) -> str:
    return name.casefold() if _FOLDS_CASE else name
