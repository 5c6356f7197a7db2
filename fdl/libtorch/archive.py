"""Check the members of an archive before anything is written, and unpack them.

An archive is refused as a whole if one of its members could reach outside the target, overwrite
another member, or is not a file, a folder or a link. This holds for unwanted members too.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import shutil
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

from fdl.base.errors import FetchError, failing
from fdl.base.progress import Progress
from fdl.base.units import size_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of downloading and unpacking; sizes in bytes, times in seconds."""

    tail: int = 4 << 20
    """Size of the first request, at the end of the file. It should hold the directory, so that the
    members are checked before the rest is fetched; that of an official archive has about 1 MiB."""

    stall_timeout: float = 20.0
    """Time without data after which a connection is replaced by another one."""

    watched: float = 60.0
    """Time within which 64 KiB must arrive, else the server is given up: it stalls or drips."""

    attempts: int = 6
    """Failures in a row, with no bytes in between, after which a server is given up. As often may
    a download begin: the archive may change, or a server without ranges disconnect."""

    backoff: float = 0.5
    """The pause before the second attempt; each later pause is twice as long."""

    largest_total: int = 64 << 30
    """Maximum total size of an unpacked archive."""


class ArchiveError(FetchError):
    """The archive is bad: the bytes downloaded from it are useless."""


class UnreachableError(FetchError):
    """An address provides no archive; another address may."""


def shown(url: str) -> str:
    """An address for messages: without password, and without a query, which may be a signature.

    Other words are returned as they are.
    """
    return re.sub(r"://(?:[^/]*@)?([^?#]*).*", r"://\1", url)


def disk_failure(path: Path | str, error: OSError) -> FetchError:
    """The error for a file that cannot be written; downloaded bytes are kept."""
    kept = "what was fetched so far is kept"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = f"free some space and type the same command again; {kept}"
        return FetchError(f"the disk is full: cannot write {path}", hint=hint)
    return FetchError(f"cannot write {path}: {error.strerror}", hint=kept)


def require_space(target: Path, unpacked: int, part: Path, fetched: int) -> None:
    """Check that there is space for all files to be written.

    These are ``unpacked`` bytes in ``target``, and ``fetched`` bytes by which the part file grows.

    Raises:
        FetchError: There is not enough space.
    """
    needs = {target: unpacked, part.parent: fetched}
    if target.stat().st_dev == part.parent.stat().st_dev:
        needs = {target: unpacked + fetched}
    for folder, needed in needs.items():
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise FetchError(
                f"the archive takes {size_text(fetched)} more and its files {size_text(unpacked)}: "
                f"{folder} needs {size_text(needed)} and has {size_text(free)} left: "
                f"{size_text(needed - free)} are missing",
                hint="free some space there and type the same command again",
            )


Select = Callable[[str], str | None]
"""Name of a file -> its path relative to the target, or None to leave it out."""

Members = Mapping[str, zipfile.ZipInfo]
"""Path relative to the target -> the file or link to unpack there."""

_AGAIN = "fetch it once more; if that does not help, take it from somewhere else"

_LOCAL = 30
_BLOCK = 4096
"""The usual allocation unit of file systems, in bytes."""
_PIECE = 1 << 20

_LARGEST_DIRECTORY = 64 << 20
"""Maximum size of the list of members: about 600 thousand members."""
_LARGEST_LINK = 4096
_LARGEST_RATIO = 1000
"""Maximum ratio of a member's size to its packed size; deflate itself reaches at most 1032."""
_SMALL = 1 << 20
"""Members up to this size may have any ratio."""
_DEEPEST = 100

_ENCRYPTED_OR_PATCH = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 13
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_UNIX = (3, 19)
"""Systems whose attributes are a Unix mode: Unix itself and macOS."""
_AMBIGUOUS = re.compile(r"[\0-\x1f\x7f\\]|^.:" + ("|:" if sys.platform == "win32" else ""))
"""Control characters, backslashes and drives."""

# zipfile does not check for damaged files and can raise any of these for them.
DAMAGE = (
    zipfile.BadZipFile, NotImplementedError, RuntimeError, struct.error, zlib.error,
    EOFError, ValueError, LookupError, OverflowError,
)  # fmt: skip


class Bytes(io.BufferedReader):
    """The bytes of an archive; at most as many are read at once as a directory may have."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read some bytes; without a size, as many as there are and may be read at once.

        Raises:
            ArchiveError: They are too many.
        """
        if size is None or size < 0:
            size = _LARGEST_DIRECTORY
        if size > _LARGEST_DIRECTORY:
            large = f"the archive is refused: it has a directory of {size_text(size)}"
            raise ArchiveError(large, hint=_AGAIN)
        return super().read(size)


class Unpacked(NamedTuple):
    """What was unpacked."""

    sha256: str
    """SHA-256 of the whole archive, in hexadecimal."""
    url: str
    """The origin of the archive: an address, or the path of a file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What to unpack, and where.

    Folders are created for the files in them; empty folders are left out. Execute bits and symbolic
    links are restored; links must not lead outside the target.

    Attributes:
        target: An existing empty folder. After a failure, its content is useless.
        select: Name of a file -> its path relative to ``target``, or None to leave it out.
        progress: Receives how much of the archive is there, then how much is unpacked.
        sha256: The expected digest of the archive; None for any.
        options: Sizes, times and limits.
    """

    target: Path
    select: Select
    progress: Progress
    sha256: str | None = None
    options: Options = Options()

    def unpack(
        self, archive: Path, source: io.RawIOBase | None = None, where: str = ""
    ) -> Unpacked:
        """Check all members of an archive and the space for them, then its digest, and unpack it.

        Args:
            archive: The file.
            source: Reads the archive, if not all of it is in the file yet.
            where: Its name for messages, instead of its path.

        Raises:
            FetchError: The archive cannot be read, is damaged, is unsafe, has another digest than
                expected, or the disk is full.
        """
        where = where or str(archive)
        with (
            failing(f"cannot read {archive}", kind=FetchError),
            Bytes(source or io.FileIO(archive)) as content,
        ):
            opened = _open(content, where)
            members = _plan(opened, self.select, self.options)
            tree = sum(-(-info.file_size // _BLOCK) * _BLOCK for info in members.values())
            missing = content.seek(0, os.SEEK_END) - archive.stat().st_size
            require_space(self.target, tree, archive, missing)
            content.seek(0)
            sha256 = hashlib.file_digest(content, "sha256").hexdigest()
            if self.sha256 and sha256 != self.sha256.lower():
                raise ArchiveError(
                    f"{where} is not the archive that is expected: its SHA-256 is {sha256} "
                    f"and has to be {self.sha256.lower()}",
                    hint="nothing was installed; type the same command again; "
                    "if the digest stays wrong, do not use that source",
                )
            _write(opened, members, self.target, self.progress)
        return Unpacked(sha256, where)


def _open(source: Bytes, where: str) -> zipfile.ZipFile:
    """Open an archive, whose directory must be at its end.

    Raises:
        ArchiveError: It is not a zip archive, or a damaged one; the message begins with ``where``.
        OSError: It cannot be read.
    """
    reason = "it does not end like a zip archive"
    try:
        opened = zipfile.ZipFile(source)
        # zipfile takes archives with bytes before them, whose members may hide others.
        source.seek(-len(opened.comment) - 6, os.SEEK_END)
        if int.from_bytes(source.read(4), "little") in (opened.start_dir, 0xFFFFFFFF):
            return opened
        reason = "its directory is not where its end record says"
    except DAMAGE:
        pass
    raise ArchiveError(f"{where} is not a zip archive, or a damaged one: {reason}", hint=_AGAIN)


def _plan(opened: zipfile.ZipFile, select: Select, options: Options) -> Members:
    """Check all members and choose those to unpack, in the order of the archive.

    Raises:
        ArchiveError: A member is unsafe; the message names it.
    """
    ordered = sorted(opened.infolist(), key=lambda one: one.header_offset)
    ends = [one.header_offset for one in ordered[1:]] + [opened.start_dir]
    members: dict[str, zipfile.ZipInfo] = {}
    total, most = 0, options.largest_total
    too_much = f"would unpack to over {size_text(most)}, with the ones before it"
    for info, end in zip(ordered, ends, strict=False):
        name = info.orig_filename
        total += info.file_size
        _refuse(name, _faults(name) | _packing_faults(info, end) | {too_much: total > most})
        destination = None if name.endswith("/") else select(name)
        if destination is not None:
            over_another = {"would be unpacked over another one": destination in members}
            _refuse(name, _faults(destination) | over_another)
            members[destination] = info
    for path, info in members.items():
        below = any(path[:at] in members for at, char in enumerate(path) if char == "/")
        _refuse(info.orig_filename, {"lies below another member that is not a folder": below})
    return members


def _write(opened: zipfile.ZipFile, members: Members, target: Path, progress: Progress) -> None:
    """Write checked members below an empty folder: files first, then links.

    So nothing can be written through a link. Users who may read an executable file may also run it.

    Raises:
        ArchiveError: A member is damaged, or is a link that leads outside.
        FetchError: A file cannot be written.
    """
    done, path, name = 0, target, ""
    links: dict[Path, str] = {}
    progress.start(sum(info.compress_size for info in members.values()))
    try:
        for destination, info in members.items():
            path, name, mode = target / destination, info.orig_filename, _mode(info)
            path.parent.mkdir(parents=True, exist_ok=True)
            with opened.open(info) as content:
                if stat.S_ISLNK(mode):
                    links[path] = _link_text(name, destination, content.read())
                else:
                    opener = partial(os.open, mode=0o777 if mode & 0o111 else 0o666)
                    with open(path, "xb", opener=opener) as file:
                        shutil.copyfileobj(content, file, _PIECE)
                        # zipfile does not notice that a member is too short.
                        if file.tell() != info.file_size:
                            raise zipfile.BadZipFile("it is too short")
            done += info.compress_size
            progress.update(done)
        for path, text in links.items():
            path.symlink_to(text)
    except OSError as error:
        raise disk_failure(path, error) from None
    except DAMAGE as error:
        raise ArchiveError(
            f"the archive is damaged: its member {name!r} is larger than the archive says, or its "
            f"header, its size or its checksum disagrees ({error})",
            hint=_AGAIN,
        ) from None


def _refuse(name: str, faults: Mapping[str, bool]) -> None:
    """Refuse a member that has one of some faults."""
    for reason, is_there in faults.items():
        if is_there:
            raise ArchiveError(
                f"the archive is refused: its member {name!r:.60} {reason}",
                hint="nothing was unpacked; take the archive from a place you trust",
            )


def _faults(name: str) -> dict[str, bool]:
    """Why a name is refused: it could lead outside a folder it is unpacked to."""
    parts = name.removesuffix("/").split("/")
    is_ambiguous = bool(_AMBIGUOUS.search(name)) or not {"", "."}.isdisjoint(parts)
    return {
        f"is in more than {_DEEPEST} folders": name.count("/") > _DEEPEST,
        "would be unpacked outside its folder": name.startswith("/") or ".." in parts,
        "has a name that does not mean the same file everywhere": is_ambiguous,
    }


def _packing_faults(info: zipfile.ZipInfo, end: int) -> dict[str, bool]:
    """Why a member is refused: an unknown kind or packing, or sizes that are not credible."""
    name, size, packed = info.orig_filename, info.file_size, info.compress_size
    begin, method, kind = info.header_offset, info.compress_type, stat.S_IFMT(_mode(info))
    kinds = (0, stat.S_IFDIR) if name.endswith("/") else (0, stat.S_IFREG, stat.S_IFLNK)
    is_bomb = size > max(_SMALL, packed * _LARGEST_RATIO)
    return {
        "is encrypted": bool(info.flag_bits & _ENCRYPTED_OR_PATCH),
        f"is packed in a way fdl does not know ({method})": method not in _METHODS,
        f"would unpack to over {_LARGEST_RATIO} times its size": is_bomb,
        "overlaps the one after it": begin < 0 or begin + _LOCAL + len(name) + packed > end,
        "is not a file, a folder or a link": kind not in kinds,
        "is a link of improbable length": kind == stat.S_IFLNK and size > _LARGEST_LINK,
    }


def _link_text(name: str, destination: str, content: bytes) -> str:
    """The target of a link, which must stay inside.

    Only leading ``..`` are allowed, because the folders above are real folders: no member is below
    a link. A later ``..`` could go up through a second link.
    """
    text = os.fsdecode(content)
    steps = [step for step in text.split("/") if step != "."]
    inner = list(dropwhile("..".__eq__, steps))
    leaves = len(steps) - len(inner) > destination.count("/")
    is_unsafe = leaves or any(_faults("/".join(inner)).values())
    _refuse(name, {f"is a link that leads outside its folder ({text!r})": is_unsafe})
    return text


def _mode(info: zipfile.ZipInfo) -> int:
    return info.external_attr >> 16 if info.create_system in _UNIX else 0
