"""Read, replace and extend files, so that no reader sees a half-written one.

Another program may have put a file there: a pipe would wait for a writer, a link may lead to
itself, and a folder may be unreadable. Each of them counts as a file that cannot be read.

Imported on the warm path: only small modules at module top.
"""

# pathlib and contextlib would double the start-up time of a warm command.
# ruff: noqa: PTH100, PTH101, PTH102, PTH103, PTH105, PTH108, PTH110, PTH112, PTH114, PTH116, PTH118, PTH120, PTH123, PTH208, SIM105
from __future__ import annotations

import errno
import os
import stat
import time

from fdl.base.errors import FdlError
from fdl.base.masking import KNOWN
from fdl.base.run_record import host

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib
    from types import ModuleType
    from typing import Any, BinaryIO

    Path = str | os.PathLike[str]

fcntl: ModuleType | Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0)
MOST_TEXT = 256 << 20
"""Bytes of a text that is read as a whole, such as a table of metrics."""

_DAY_SECONDS = 86400.0
_swept: set[str] = set()
"""Folders that this process has cleaned; folders of durable files are cleaned at every write."""


class replacing:  # noqa: N801 - it is used like a function
    """Write a file as a whole: readers see the old file or the complete new one.

    The bytes go to a temporary file in the same folder. It replaces the file when the block ends
    without an error; otherwise it is removed. Leftovers of killed processes in the folder are
    removed too, see :func:`remove_leftovers`. A symbolic link is followed: its target is replaced.

    Args:
        path: A regular file, or an unused name in an existing folder.
        durable: Also wait until the file is on disk, so that it survives a power cut.
        mode: The permissions of the file, less the umask.
        keep: Keep permissions and owner of a file that exists.

    Raises:
        OSError: The system refused (permission, space), or ``path`` is not a regular file. The file
            has its old content.
    """

    def __init__(
        self, path: Path, *, durable: bool = False, mode: int = 0o666, keep: bool = False
    ) -> None:
        self._named = os.fspath(path)
        self._target = os.path.realpath(path)
        self._durable = durable
        self._mode = mode
        self._keep = keep
        self._old: os.stat_result | None = None

    def __enter__(self) -> BinaryIO:
        target = self._target
        folder, name = os.path.split(target)
        if os.path.islink(target):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), target)
        there = os.stat(target) if os.path.exists(target) else None
        if there and not stat.S_ISREG(there.st_mode):
            if os.path.isdir(target):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), target)
            raise OSError(errno.EINVAL, "not a regular file", target)
        if self._durable or folder not in _swept:
            remove_leftovers(folder)
            _swept.add(folder)
        # The file may be readable by its owner alone, and this is a copy of it.
        self._old = there if self._keep else None
        first = 0o600 if self._old else self._mode
        while True:
            # Cut, because names may have at most 255 bytes and a character may take four.
            self._temporary = os.path.join(folder, f".{name[:48]}.{_unique()}")
            self._file = open(
                self._temporary, "xb", opener=lambda path, how: os.open(path, how, first)
            )
            # Another process may have removed it as a leftover before it was locked.
            if fcntl is None or _lock(self._file.fileno()):
                return self._file
            self._file.close()

    def __exit__(self, kind: object, problem: BaseException | None, _: object) -> None:
        try:
            if kind is None:
                self._finish()
        except OSError as error:
            # A write to a full disk does not say to which file.
            error.filename = error.filename or self._named
            raise
        finally:
            for leave in (self._file.close, lambda: os.unlink(self._temporary)):
                try:
                    leave()
                except OSError:
                    pass
        if isinstance(problem, OSError) and problem.filename is None:
            problem.filename = self._named

    def _finish(self) -> None:
        file, old = self._file, self._old
        file.flush()
        if self._durable:
            os.fsync(file.fileno())
        if old:
            try:
                os.chown(self._temporary, old.st_uid, old.st_gid)
            except (OSError, AttributeError):
                pass
            os.chmod(self._temporary, stat.S_IMODE(old.st_mode))
        if fcntl is None:  # Windows cannot rename open files
            file.close()
        # Elsewhere before the close: an unlocked temporary file counts as a leftover.
        os.replace(self._temporary, self._target)
        if self._durable:
            _sync_folder(os.path.dirname(self._target))


class staging:  # noqa: N801 - it is used like a function
    """Make a hidden folder inside a folder; move its content away when that is complete.

    The hidden folder is removed at the end of the block if it still exists, or later by
    :func:`remove_leftovers`.

    Args:
        folder: An existing folder; for files that do not stay, that of temporary files.
        mode: The permissions of the hidden folder, less the umask.

    Raises:
        OSError: The system refused.
    """

    def __init__(self, folder: Path, *, mode: int = 0o777) -> None:
        self._folder = os.fspath(folder)
        self._mode = mode

    def __enter__(self) -> pathlib.Path:
        from pathlib import Path

        remove_leftovers(self._folder)
        self._descriptor = -1
        while True:
            self._path = Path(self._folder, f".new.{_unique()}")
            self._path.mkdir(self._mode)
            # Another process that begins now may remove the folder before it is locked.
            if fcntl is None or self._is_locked():
                return self._path

    def _is_locked(self) -> bool:
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        if _lock(descriptor):
            self._descriptor = descriptor
            return True
        os.close(descriptor)
        return False

    def __exit__(self, *_: object) -> None:
        from shutil import rmtree

        rmtree(self._path, ignore_errors=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders that killed processes left in a folder.

    A running process holds a lock on its temporary files. Some file systems share locks only
    within one host. So the leftovers of other hosts are removed only after a day without a change.
    What cannot be removed stays.
    """
    if fcntl is None:
        return
    for name in names(folder):
        origin = _origin(name)
        if not origin:
            continue
        path = os.path.join(folder, name)
        try:
            age = time.time() - os.lstat(path).st_mtime
            if origin == _host() or age > _DAY_SECONDS:
                _remove_unlocked(path)
        except OSError:
            continue


def _remove_unlocked(path: str) -> None:
    is_folder = os.path.isdir(path)
    # Opened for writing, because NFS cannot lock a file that is only read.
    descriptor = os.open(path, (os.O_RDONLY if is_folder else os.O_RDWR) | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_folder:
            from shutil import rmtree

            rmtree(path)
        else:
            os.unlink(path)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock a temporary file or folder; False if it was removed before."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:  # a file system without locks: then no process can remove it either
        pass
    return os.fstat(descriptor).st_nlink > 0


def _unique() -> str:
    return f"{_host()}-{os.urandom(6).hex()}.tmp"


def _origin(name: str) -> str:
    """The host of a temporary file or folder, from its name; empty for every other name."""
    stem, _, kind = name.rpartition(".")
    _, _, unique = stem.rpartition(".")
    origin, _, token = unique.partition("-")
    mine = kind == "tmp" and name.startswith(".") and (len(origin), len(token)) == (8, 12)
    return origin if mine and frozenset("0123456789abcdef").issuperset(origin + token) else ""


def _host() -> str:
    from zlib import crc32

    return f"{crc32(host().encode()):08x}"


def _sync_folder(folder: str) -> None:
    # Best effort: some file systems refuse to open or to sync a directory.
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def put(file: Path, content: bytes, mode: int | None = None) -> None:
    """Write a whole file, and its folder if there is none; see :class:`replacing`.

    What replaces another content is on disk before it does.

    Raises:
        OSError: It cannot be written; it has its old content.
    """
    target = os.path.realpath(file)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    old = mode is None and os.path.exists(target)
    first = 0o666 if mode is None else mode
    with replacing(file, durable=old, mode=first, keep=old) as stream:
        stream.write(content)


def replace_text(path: Path, text: str) -> None:
    """Replace a text file as a whole, without secrets; a failure leaves the old content.

    Raises:
        OSError: See :class:`replacing`.
    """
    with replacing(path) as file:
        file.write(_masked(text))


def write_text(path: Path, text: str) -> None:
    """Replace a text file as a whole, and create its missing folders.

    Raises:
        OSError: See :class:`replacing`.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    replace_text(path, text)


def append_text(path: Path, text: str) -> None:
    """Add text without secrets to an existing file; a failure removes what was already added.

    Raises:
        OSError: The file or its folder is gone, or the disk is full.
    """
    append_bytes(path, _masked(text))


def append_bytes(path: Path, data: bytes) -> None:
    """Add bytes at the end of an existing file; a failure removes what was already added.

    Raises:
        OSError: The file or its folder is gone, or the disk is full.
    """
    # A missing file is not created: its beginning would be missing. O_BINARY keeps Windows from
    # translating line ends.
    flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        extend(descriptor, data)
    finally:
        os.close(descriptor)


def extend(descriptor: int, data: bytes) -> None:
    """Add bytes at the end of a file open to append; a failure removes what was already added.

    Raises:
        OSError: The disk is full.
    """
    before = os.fstat(descriptor).st_size
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        os.ftruncate(descriptor, before)
        raise


def _masked(text: str) -> bytes:
    return KNOWN.text(text).encode("utf-8", "backslashreplace")


def rewrite(
    path: Path, old: bytes, new: bytes, *, name: str, error: type[FdlError] = FdlError
) -> None:
    """Write other contents where a file still has those that were read.

    Args:
        path: The file; permissions stay, and a link stays one.
        old: What it held when it was read.
        new: What it is to hold.
        name: What it is called in messages.
        error: What is raised.

    Raises:
        FdlError: It cannot be written, or has changed since it was read.
    """
    try:
        with open(path, "rb") as stream:
            has_changed = stream.read() != old
        if not has_changed:
            put(path, new)
    except OSError as problem:
        raise error(
            f"{name} cannot be written: {problem.strerror}; it is as it was",
            hint=f"check the permissions of {os.path.dirname(os.path.realpath(path))}",
        ) from None
    if has_changed:
        raise error(f"{name} has changed meanwhile; nothing was written", hint="try again")


def _opener(path: str, flags: int) -> int:
    file = os.open(path, flags | WITHOUT_WAITING)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return file


def open_bytes(path: Path) -> BinaryIO:
    """Open a regular file, also behind a link.

    Raises:
        OSError: It is not one, or cannot be read.
    """
    return open(path, "rb", opener=_opener)


def read_text(path: Path, errors: str = "strict") -> str:
    """The text of a regular file.

    Raises:
        OSError: It is not one, cannot be read, or is too large.
        UnicodeDecodeError: It is not UTF-8.
    """
    with open_bytes(path) as stream:
        if os.fstat(stream.fileno()).st_size > MOST_TEXT:
            raise OSError(errno.EFBIG, f"it is larger than {MOST_TEXT >> 20} MiB", stream.name)
        return stream.read().decode("utf-8", errors)


def text_of(path: str | Path, errors: str = "replace") -> str:
    """The text of a regular file; empty if it cannot be read.

    What is not UTF-8 becomes a sign for it, or with ``strict`` makes the text empty.
    """
    try:
        return read_text(path, errors)
    except (OSError, ValueError):
        return ""


def toml_of(file: Path) -> dict[str, Any]:
    """The content of a TOML file; empty if it cannot be read."""
    import tomllib

    try:
        return tomllib.loads(text_of(file))
    except (ValueError, RecursionError):
        return {}


def names(folder: Path) -> list[str]:
    """Sorted names of what a folder holds; none if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def subfolders(folder: Path) -> list[str]:
    """Sorted names of the folders in a folder, also behind links; those with a dot are left out."""
    try:
        with os.scandir(folder) as entries:
            found = (one for one in entries if not one.name.startswith("."))
            return sorted(one.name for one in found if _is_folder(one))
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, which must not hide the other entries
        return False


def new_folder(above: str | Path, name: str, mode: int = 0o777) -> str:
    """Make a folder in another one: NAME, or the first free one of NAME-2, NAME-3 and so on.

    Raises:
        OSError: It cannot be made.
    """
    attempt = 1
    while True:
        folder = os.path.join(above, name if attempt == 1 else f"{name}-{attempt}")
        try:
            os.mkdir(folder, mode)
            return folder
        except FileExistsError:
            attempt += 1
