"""Check the members of an archive before anything is written, and unpack them.

An archive is refused as a whole if one of its members could reach outside the target, overwrite
another member, or is not a file, a folder or a link. This holds for unwanted members too.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import re
import shutil
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import urlsplit

from fdl.base.errors import FetchError, failing
from fdl.base.progress import Progress
from fdl.base.units import size_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of downloading and unpacking; sizes in bytes, times in seconds."""

    tail: int = 1 << 20
    """Size of the first request, at the end of the file; the directory of an official archive has
    this size."""

    journal_every: int = 8 << 20
    """Number of new bytes after which the journal is updated. If the process is killed, at most
    as many are lost."""

    journal_seconds: float = 1.0
    """Time after which the journal is updated even if fewer bytes have arrived."""

    connect_timeout: float = 15.0
    """Time for a server to accept a connection."""

    stall_timeout: float = 20.0
    """Time without data after which a connection is replaced by another one."""

    watched: float = 60.0
    """Time within which 64 KiB must arrive, else the server is given up: it stalls or drips."""

    attempts: int = 6
    """Failures in a row, with no bytes in between, after which a server is given up."""

    restarts: int = 3
    """How often the archive may change, or a server without ranges disconnect, before it is given
    up."""

    backoff: float = 0.5
    """The pause before the second attempt; each later pause is twice as long."""

    longest_backoff: float = 30.0
    """The longest pause, even if a server asks for a longer one."""

    largest_directory: int = 64 << 20
    """Maximum size of the list of members: about 600 thousand members."""

    largest_total: int = 64 << 30
    """Maximum total size of an unpacked archive."""

    largest_ratio: int = 1000
    """Maximum ratio of a member's size to its packed size, if it is over 1 MiB. Deflate itself
    reaches at most 1032."""


_FULL = (errno.ENOSPC, errno.EDQUOT)


class ArchiveError(FetchError):
    """The archive is bad: the bytes downloaded from it are useless."""


class UnreachableError(FetchError):
    """An address provides no archive; another address may."""


class ChangedError(Exception):
    """The part file cannot be continued, so the download starts from zero; the text says why."""


def shown(url: str) -> str:
    """An address for messages: without password, and without a query, which may be a signature.

    Other words are returned as they are.
    """
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the address"
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="", fragment="").geturl()


def disk_failure(path: Path | str, error: OSError) -> FetchError:
    """The error for a file that cannot be written; downloaded bytes are kept."""
    kept = "what was fetched so far is kept"
    if error.errno in _FULL:
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

ENDING = 22 + 0xFFFF + 20 + 56
"""The most bytes that the records at the end of an archive take."""

_AGAIN = "fetch it once more; if that does not help, take it from somewhere else"
_DISTRUST = "nothing was unpacked; take the archive from a place you trust"

_LOCAL = 30
_BLOCK = 4096
"""The usual allocation unit of file systems, in bytes."""
_PIECE = 1 << 20
_SMALL = 1 << 20
"""Members up to this size may have any ratio of size to packed size."""

_ENCRYPTED_OR_PATCH = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 13
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_KINDS = (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
_UNIX = (3, 19)
"""Systems whose attributes are a Unix mode: Unix itself and macOS."""
_LARGEST_LINK = 4096
_DEEPEST = 100
_NAME_LIMIT = 60
_FOLDS_CASE = sys.platform in ("win32", "darwin")
_CONTROL = re.compile(r"[\0-\x1f\x7f]")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)

# zipfile does not check for damaged files and can raise any of these for them.
DAMAGE = (
    zipfile.BadZipFile, NotImplementedError, RuntimeError, struct.error, zlib.error,
    EOFError, ValueError, LookupError, OverflowError,
)  # fmt: skip


class Member(NamedTuple):
    """A file or link to unpack, with its path relative to the target."""

    info: zipfile.ZipInfo
    destination: str


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The result of unpacking.

    Attributes:
        files: Number of files and links.
        bytes: Their total size.
        sha256: SHA-256 of the whole archive, in hexadecimal.
        url: The origin of the archive: an address, or the path of a file.
    """

    files: int
    bytes: int
    sha256: str
    url: str


@dataclass(frozen=True, slots=True)
class Job:
    """What to unpack, and where; the fields are the arguments of ``unpack_url``."""

    target: Path
    select: Select
    sha256: str | None
    progress: Progress
    options: Options

    def unpack(
        self, source: IO[bytes], archive: Path, where: str, rest: Callable[[int], None]
    ) -> Unpacked:
        """Check all members of an archive, then its digest, and unpack it.

        Args:
            source: The bytes of the archive; of those that are not there yet, only the end is read
                before ``rest`` is called.
            archive: The file.
            where: Its name for messages.
            rest: Called with the size of the tree; makes the archive complete.

        Raises:
            FetchError: The archive is damaged, is unsafe or has another digest than expected; or a
                file cannot be written.
            OSError: The archive cannot be read.
        """
        with _listed(source, where) as opened:
            members = _plan(opened, self.select, self.options)
            rest(sum(-(-info.file_size // _BLOCK) * _BLOCK for info, _ in members))
            with archive.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            if self.sha256 and sha256 != self.sha256.lower():
                raise ArchiveError(
                    f"{where} is not the archive that is expected: its SHA-256 is {sha256} "
                    f"and has to be {self.sha256.lower()}",
                    hint="nothing was installed; type the same command again, and if the digest "
                    "stays wrong, do not use that source",
                )
            _write(opened, members, self.target, self.progress)
        return Unpacked(len(members), sum(info.file_size for info, _ in members), sha256, where)


def unpack_file(
    archive: Path,
    target: Path,
    *,
    select: Select,
    sha256: str | None = None,
    progress: Progress,
    options: Options = Options(),
) -> Unpacked:
    """Unpack a zip archive on this machine.

    The arguments are those of :func:`fdl.libtorch.download.unpack_url`.

    Raises:
        FetchError: The archive cannot be read, is damaged, is unsafe, has another digest than
            expected, or the disk is full.
    """
    job = Job(target, select, sha256, progress, options)
    with failing(f"cannot read {archive}", kind=FetchError), archive.open("rb") as file:
        return job.unpack(
            file, archive, str(archive), lambda tree: require_space(target, tree, archive, 0)
        )


@contextmanager
def _listed(source: IO[bytes], where: str) -> Iterator[zipfile.ZipFile]:
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
        (begin,) = struct.unpack("<I", source.read(4))
        if begin not in (opened.start_dir, 0xFFFFFFFF):
            opened.close()
            reason = "its directory is not where its end record says"
            raise zipfile.BadZipFile
    except DAMAGE:
        raise ArchiveError(
            f"{where} is not a zip archive, or a damaged one: {reason}",
            hint=_AGAIN,
        ) from None
    with opened:
        yield opened


def _plan(opened: zipfile.ZipFile, select: Select, options: Options) -> list[Member]:
    """Check all members and choose those to unpack, in the order of the archive.

    Folders are created for the files in them; empty folders are left out.

    Raises:
        ArchiveError: A member is unsafe; the message names it.
    """
    ordered = sorted(opened.infolist(), key=lambda one: one.header_offset)
    ends = [one.header_offset for one in ordered[1:]] + [opened.start_dir]
    names: set[str] = set()
    files: dict[str, str] = {}
    members: list[Member] = []
    for info, end in zip(ordered, ends, strict=False):
        name = info.orig_filename
        _check_name(name)
        _check_packing(info, end, options)
        key = _key(name.removesuffix("/"))
        if key in names:
            raise _refused(name, "appears twice")
        names.add(key)
        destination = None if name.endswith("/") else select(name)
        if destination is None:
            continue
        _check_name(destination)
        if files.setdefault(_key(destination), name) != name:
            raise _refused(name, "would be unpacked over another one")
        members.append(Member(info, destination))
    for key, name in files.items():
        if any(key[:at] in files for at, char in enumerate(key) if char == "/"):
            raise _refused(name, "lies below another member that is not a folder")
    total, most = sum(info.file_size for info in ordered) / 1e9, options.largest_total / 1e9
    if total > most:
        raise ArchiveError(
            f"the archive is refused: it would unpack to {total:.1f} GB, and at most {most:.1f} GB "
            "are taken",
            hint=_DISTRUST,
        )
    return members


def _write(
    opened: zipfile.ZipFile, members: Sequence[Member], target: Path, progress: Progress
) -> None:
    """Write checked members below an empty folder: files first, then links.

    So nothing can be written through a link. Users who may read an executable file may also run it.

    Raises:
        ArchiveError: A member is damaged, or is a link that leads outside.
        FetchError: A file cannot be written.
    """
    done, path = 0, target
    links: dict[Path, str] = {}
    progress.start(sum(info.compress_size for info, _ in members))
    try:
        for member in members:
            info, destination = member
            path = target / destination
            path.parent.mkdir(parents=True, exist_ok=True)
            if stat.S_ISLNK(_mode(info)):
                links[path] = _link_text(opened, member)
            else:
                mode = 0o777 if _mode(info) & 0o111 else 0o666
                with os.fdopen(os.open(path, _CREATE, mode), "wb") as file:
                    for block in _content(opened, info):
                        file.write(block)
            done += info.compress_size
            progress.update(done)
        for path, text in links.items():
            path.symlink_to(text)
    except OSError as error:
        raise disk_failure(path, error) from None


def _refused(name: str, reason: str) -> ArchiveError:
    shown = name if len(name) <= _NAME_LIMIT else name[: _NAME_LIMIT - 1] + "…"
    return ArchiveError(
        f"the archive is refused: its member {shown!r} {reason}",
        hint=_DISTRUST,
    )


def _refuse(name: str, faults: Mapping[str, bool]) -> None:
    """Refuse a member that has one of some faults."""
    for reason, is_there in faults.items():
        if is_there:
            raise _refused(name, reason)


def _check_name(name: str) -> None:
    """Refuse a name that could lead outside a folder it is unpacked to."""
    parts = name.removesuffix("/").split("/")
    has_drive = ":" in name and (sys.platform == "win32" or name[1:2] == ":")
    faults = {
        f"is in more than {_DEEPEST} folders": name.count("/") > _DEEPEST,
        "has a name that means something else on Windows": "\\" in name or has_drive,
        "has an absolute name": name.startswith("/"),
        "would be unpacked outside its folder": ".." in parts,
        "has no proper name": not {"", "."}.isdisjoint(parts) or bool(_CONTROL.search(name)),
    }
    _refuse(name, faults)


def _check_packing(info: zipfile.ZipInfo, end: int, options: Options) -> None:
    """Refuse a member of an unknown kind or packing, or with sizes that are not credible."""
    name, size, packed = info.orig_filename, info.file_size, info.compress_size
    begin, method, most = info.header_offset, info.compress_type, options.largest_ratio
    kind, is_folder = stat.S_IFMT(_mode(info)), name.endswith("/")
    is_stored = method == zipfile.ZIP_STORED
    is_both = is_folder != (kind == stat.S_IFDIR) and bool(kind or (is_folder and size))
    faults = {
        "is encrypted": bool(info.flag_bits & _ENCRYPTED_OR_PATCH),
        f"is packed in a way fdl does not know ({method})": method not in _METHODS,
        "is stored with two different sizes": is_stored and packed != size,
        f"would unpack to over {most} times its size": size > max(_SMALL, packed * most),
        "overlaps the one after it": begin < 0 or begin + _LOCAL + len(name) + packed > end,
        "is neither a file nor a folder nor a link": kind not in _KINDS,
        "is a folder by its name or by its kind, and not by both": is_both,
        "is a link of improbable length": kind == stat.S_IFLNK and size > _LARGEST_LINK,
    }
    _refuse(name, faults)


def _link_text(opened: zipfile.ZipFile, member: Member) -> str:
    """The target of a link, which must stay inside.

    Only leading ``..`` are allowed, because the folders above are real folders: no member is below
    a link. A later ``..`` could go up through a second link.
    """
    name = member.info.orig_filename
    try:
        text = b"".join(_content(opened, member.info)).decode()
    except UnicodeDecodeError:
        raise _refused(name, "is a link to something that is not a name") from None
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(member.destination), text))
    steps = text.split("/")
    climbs = next((index for index, step in enumerate(steps) if step != ".."), len(steps))
    plain = bool(text) and not (set(text) & {"\\", "\0"}) and not re.match("[A-Za-z]:|/", text)
    if not plain or ".." in steps[climbs:] or inside == ".." or inside.startswith("../"):
        raise _refused(name, f"is a link that leads outside its folder ({text!r})")
    return text


def _content(opened: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """The content of a member, no longer than the directory says.

    Raises:
        ArchiveError: It is damaged.
    """
    # zipfile would stop at the size that the directory gives, and miss that there is more.
    whole, size = copy(info), 0
    whole.file_size = sys.maxsize
    reason = "its header and the directory disagree"
    try:
        with opened.open(whole) as content:
            reason = "its size or its checksum is wrong"
            while block := content.read(_PIECE):
                size += len(block)
                if size > info.file_size:
                    reason = "it is larger than the archive says"
                    break
                yield block
        if size != info.file_size:
            raise zipfile.BadZipFile
    except DAMAGE:
        raise ArchiveError(
            f"the archive is damaged: its member {info.orig_filename!r} cannot be unpacked, "
            f"{reason}",
            hint=_AGAIN,
        ) from None


def _mode(info: zipfile.ZipInfo) -> int:
    return info.external_attr >> 16 if info.create_system in _UNIX else 0


def _key(name: str) -> str:
    return name.casefold() if _FOLDS_CASE else name
