"""Downloads of well-known data sets: resumed after a break, verified, then renamed."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import final

from flodl.errors import DataError
from flodl.log import msg

_CHUNK = 1 << 20
_ATTEMPTS = 3
"""Tries per address; each try continues where the one before stopped."""


@final
@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """One file of a data set on the network."""

    name: str
    """The name of the file in the folder, and the end of its addresses."""
    folders: tuple[str, ...]
    """Addresses of the folders that offer it, each with a slash at the end, in the order of use."""
    sha256: str
    """Digest of the whole file, in lower-case hexadecimal digits."""


def fetch(
    file: RemoteFile,
    folder: str | os.PathLike[str],
    *,
    mirror: str | None = None,
    timeout_seconds: float = 30.0,
) -> Path:
    """Return the path of a file in a folder; download the file if it is missing.

    A partial download stays beside it as ``<name>.part``, and the next call continues it. Only a
    complete file with the right digest gets the name. Several processes may call this at once.

    Args:
        file: The file.
        folder: Its folder; made if missing.
        mirror: Address of a folder to download from instead.
        timeout_seconds: How long a server may stay silent.

    Returns:
        The path of the file.

    Raises:
        DataError: The file cannot be downloaded (the message says what to put where by hand), or
            the download or the file in the folder has another digest.
        ValueError: ``mirror`` is not an http address.
    """
    from filelock import FileLock

    target = Path(folder) / file.name
    urls = _addresses(file, mirror)
    # Check before anything is written: the folder may be read-only and filled by others.
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
    """Fill ``part``; the rest of an earlier call is used if it fits.

    Raises:
        OSError: The server is not reached, refuses, or breaks off at every try.
        DataError: The download has another digest.
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
        # The earlier part may belong to an older version of the file.
        _download(url, part, file, timeout_seconds)


def _transfer(url: str, part: Path, timeout_seconds: float) -> None:
    """Send one request for the missing bytes.

    Raises:
        OSError: The server is not reached, refuses, or breaks off.
        http.client.HTTPException: Its answer is invalid, or breaks off.
    """
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url)  # noqa: S310 - our own addresses, or checked above
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        answer = urllib.request.urlopen(request, timeout=timeout_seconds)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
            raise
        error.close()
        # No byte is missing, or there are too many: the digest decides.
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
    # copyfileobj takes a broken connection for the end of the file.
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
