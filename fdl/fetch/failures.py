"""The ways in which downloading and unpacking fail, and whether downloaded bytes are kept."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from fdl.errors import FetchError

_FULL = (errno.ENOSPC, errno.EDQUOT)


class ArchiveError(FetchError):
    """The archive is bad: the bytes downloaded from it are useless."""


class UnreachableError(FetchError):
    """An address provides no archive; another address may."""


class ChangedError(Exception):
    """The part file cannot be continued, so the download starts from zero; the text says why."""


def disk_failure(path: Path | str, error: OSError) -> FetchError:
    """The error for a file that cannot be written; downloaded bytes are kept."""
    if error.errno in _FULL:
        return FetchError(
            f"the disk is full: cannot write {path}",
            hint="free some space and type the same command again; what was fetched so far is kept",
        )
    return FetchError(
        f"cannot write {path}: {error.strerror}", hint="what was fetched so far is kept"
    )


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
                f"{folder} needs {_amount(needed)} and has {_amount(free)} left: "
                f"{_amount(needed - free)} are missing",
                hint="free some space there and type the same command again",
            )


def _amount(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
