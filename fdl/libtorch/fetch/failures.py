"""The ways in which downloading and unpacking fail, and what their messages may show."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from fdl.base.errors import FetchError

_FULL = (errno.ENOSPC, errno.EDQUOT)


class ArchiveError(FetchError):
    """The archive is bad: the bytes downloaded from it are useless."""


class UnreachableError(FetchError):
    """An address provides no archive; another address may."""


class ChangedError(Exception):
    """The part file cannot be continued, so the download starts from zero; the text says why."""


class TransientError(Exception):
    """A failure that may pass.

    Attributes:
        reason: What happened, for the message if it does not pass.
        after: Seconds that the server asks to wait.
        silent: Whether the server sent nothing for a while.
    """

    def __init__(self, reason: str, after: float = 0.0, *, silent: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.after, self.silent = reason, after, silent


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
                f"the archive takes {_amount(fetched)} more and its files {_amount(unpacked)}: "
                f"{folder} needs {_amount(needed)} and has {_amount(free)} left: "
                f"{_amount(needed - free)} are missing",
                hint="free some space there and type the same command again",
            )


def _amount(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
