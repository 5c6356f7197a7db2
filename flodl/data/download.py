"""Fetching the files of well-known data sets: resumed where it was cut, checked, then renamed."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from filelock import FileLock

from flodl.errors import DataError
from flodl.log import msg

if TYPE_CHECKING:
    import os

_CHUNK = 1 << 20
_ATTEMPTS = 3
"""Tries per address; each goes on where the one before was cut."""


@final
@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """One file of a data set on the network."""

    name: str
    """What the file is called in the folder, and at the end of its addresses."""
    folders: tuple[str, ...]
    """Addresses of the folders that offer it, ending in a slash; the first is tried first."""
    sha256: str
    """Digest of the whole file, in lower-case hexadecimal digits."""


def fetch(
    file: RemoteFile,
    folder: str | os.PathLike[str],
    *,
    mirror: str | None = None,
    timeout_seconds: float = 30.0,
) -> Path:
    """Have a file in a folder, downloading it if it is not there.

    A partial download stays beside it as ``<name>.part`` and is continued by the next call; only a
    complete file with the right digest gets the name. Several processes may ask at once.

    Args:
        file: Which one.
        folder: Where it shall be; made if missing.
        mirror: Address of a folder to take it from instead.
        timeout_seconds: How long a server may stay silent.

    Returns:
        The path of the file.

    Raises:
        DataError: It cannot be downloaded (the message says what to put where by hand), or what
            came, or what is in the folder, is another file.
        ValueError: ``mirror`` is no http address.
    """
    target = Path(folder) / file.name
    urls = _addresses(file, mirror)
    # Before anything is written: the folder may be one that others fill and we only read.
    if _is_there(target, file):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{file.name}.lock")):
        if _is_there(target, file):
            return target
        part = target.with_name(f"{file.name}.part")
        reasons = []
        for url in urls:
            try:
                _download(url, part, file, timeout_seconds)
            except (OSError, http.client.HTTPException) as error:
                reasons.append(f"{url}: {_reason(error)}")
                continue
            except DataError as error:
                reasons.append(str(error))
                continue
            part.replace(target)
            return target
    raise DataError(
        f"{file.name} cannot be downloaded:\n  "
        + "\n  ".join(reasons)
        + f"\nWithout a network: fetch it elsewhere and put it into {target.parent.resolve()} "
        f"(SHA-256 {file.sha256})"
    )


def _is_there(target: Path, file: RemoteFile) -> bool:
    if not target.exists():
        return False
    _check(target, file, f"{target}: it is not the file that belongs there")
    return True


def _addresses(file: RemoteFile, mirror: str | None) -> list[str]:
    if mirror is None:
        return [folder + file.name for folder in file.folders]
    if not mirror.startswith(("http://", "https://")):
        raise ValueError(f"mirror={mirror!r}: give the address of a folder, http:// or https://")
    return [mirror.rstrip("/") + "/" + file.name]


def _download(url: str, part: Path, file: RemoteFile, timeout_seconds: float) -> None:
    """Fill ``part``; what an earlier call left of it is used if it fits.

    Raises:
        OSError: The server is not reached, refuses, or breaks off every time.
        DataError: What came is another file.
    """
    msg("downloading {}", url)
    had_some = part.exists()
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _transfer(url, part, timeout_seconds)
            break
        except urllib.error.HTTPError:
            raise
        except (OSError, http.client.HTTPException):
            if attempt == _ATTEMPTS:
                raise
    try:
        _check(part, file, f"{url}: the download is another file than expected")
    except DataError:
        part.unlink()
        if not had_some:
            raise
        # The rest of an older file may have been glued to the beginning of a newer one.
        _download(url, part, file, timeout_seconds)


def _transfer(url: str, part: Path, timeout_seconds: float) -> None:
    """One request for what is missing.

    Raises:
        OSError: The server is not reached, refuses, or breaks off.
        http.client.HTTPException: It talks nonsense, or breaks off.
    """
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url)  # noqa: S310 - addresses of ours, or checked above
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        answer = urllib.request.urlopen(request, timeout=timeout_seconds)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
            raise
        error.close()
        # Nothing is missing, or there is too much: the digest decides.
        return
    with answer:
        # A server that ignores the range sends the file from its beginning.
        resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        if resumed and not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise http.client.HTTPException("the answer holds another part than asked for")
        expected = answer.headers.get("Content-Length")
        with part.open("ab" if resumed else "wb") as out:
            before = out.tell()
            shutil.copyfileobj(answer, out, _CHUNK)
            received = out.tell() - before
    # copyfileobj takes a connection that was cut for the end of the file.
    if expected is not None and received < int(expected):
        raise ConnectionError(f"the connection broke after {start * resumed + received:,} bytes")


def _check(path: Path, file: RemoteFile, complaint: str) -> None:
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != file.sha256:
        raise DataError(
            f"{complaint}: its SHA-256 is {digest}, expected {file.sha256}; remove it and try "
            "again, or fetch it from another place"
        )


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__
