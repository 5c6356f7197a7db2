"""Translate errors of huggingface_hub into flodl's errors and messages.

The original messages are not shown: they hold addresses with signatures, and messages of a proxy or
a header parser may quote a token.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from flodl.hf.errors import (
    DiskFull,
    FileNotFoundOnHub,
    GatedRepo,
    HubError,
    RepoNotFound,
    RevisionNotFound,
    need,
)

# The HTTP package of huggingface_hub depends on its version.
_NETWORK_PACKAGES = frozenset(
    {"requests", "urllib3", "httpx", "httpx2", "httpcore", "httpcore2", "hf_xet", "huggingface_hub"}
)
_TRANSIENT = frozenset({408, 425, 429})
_TOKEN_HINT = "pass token=, set HF_TOKEN, or run hf auth login"


class Unreachable(Exception):  # noqa: N818 - it never leaves the package
    """The Hub gave no usable answer; the cache may serve instead. The text says why."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: ``file`` of ``repo`` at ``revision`` from ``endpoint``, and the cache folder."""

    repo: str
    revision: str
    file: str
    endpoint: str
    cache_dir: str


def without_credentials(url: str) -> str:
    """The address of an endpoint without a user name and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def no_such_file(repo: str, revision: str, file: str) -> FileNotFoundOnHub:
    """The error for a file that the repository does not have."""
    return FileNotFoundOnHub(f"{repo} has no file {file} at {revision}")


def translated(error: Exception, asked: Asked) -> Exception:
    """Translate an error of huggingface_hub.

    Returns:
        A :class:`HubError` if the Hub answered, :class:`Unreachable` if it did not. An error that
        has nothing to do with the Hub is returned as it is: a folder that cannot be written, for
        instance.
    """
    if _is_full_disk(error):
        return DiskFull(
            f"no space is left on the disk of {asked.cache_dir} for {asked.file} of {asked.repo}: "
            "free some there, or pass cache_dir= (or set HF_HOME) to use another disk"
        )
    hub = need("huggingface_hub.errors")
    if isinstance(error, hub.LocalEntryNotFoundError):
        # It only says that the cache did not help; the original problem is its cause.
        cause = error.__cause__
        return translated(cause, asked) if isinstance(cause, Exception) else _unreachable(error)
    if isinstance(error, hub.EntryNotFoundError):
        return no_such_file(asked.repo, asked.revision, asked.file)
    if isinstance(error, hub.HfHubHTTPError):
        return _answered(error, asked)
    if isinstance(error, hub.LocalTokenNotFoundError):
        return HubError(f"{asked.repo}: token=True, but no token is stored; {_TOKEN_HINT}")
    if isinstance(error, hub.HFValidationError):
        return RepoNotFound(f"{asked.repo!r} cannot be the name of a repository; see owner/name")
    if isinstance(error, UnicodeError):  # in a header; the file was not looked at
        return HubError(f"{asked.repo}: the token holds a character that cannot be sent")
    if isinstance(error, hub.FileMetadataError):
        return Unreachable("the endpoint is not a Hugging Face Hub: its headers are missing")
    if _is_of_network(error):
        return _unreachable(error)
    return error


def _answered(error: Exception, asked: Asked) -> Exception:
    hub = need("huggingface_hub.errors")
    page = f"{asked.endpoint}/{asked.repo}"
    if isinstance(error, hub.GatedRepoError):
        return GatedRepo(
            f"{asked.repo} is gated: accept its terms on {page}, then use a token of that account: "
            f"{_TOKEN_HINT}"
        )
    if isinstance(error, hub.RepositoryNotFoundError):
        return RepoNotFound(
            f"there is no repository {asked.repo} on {asked.endpoint} (nor a directory of that "
            f"name here), or it is private: check the name, or {_TOKEN_HINT}"
        )
    if isinstance(error, hub.RevisionNotFoundError):
        return RevisionNotFound(
            f"{asked.repo} has no branch, tag or commit {asked.revision!r}: see {page}/tree/main"
        )
    response = getattr(error, "response", None)
    status = 0 if response is None else int(response.status_code)
    if status in _TRANSIENT or status >= 500:
        return Unreachable(f"HTTP status {status}")
    if status in {401, 403}:
        return HubError(
            f"{asked.endpoint} refuses {asked.file} of {asked.repo} (HTTP status {status}): the "
            f"token is wrong, or may not read it; {_TOKEN_HINT}"
        )
    return HubError(
        f"{asked.endpoint} does not give {asked.file} of {asked.repo} at {asked.revision}: HTTP "
        f"status {status}"
    )


def header(error: BaseException | None, name: str) -> str | None:
    """A header of the response that the error is about; None if there is no response."""
    response = getattr(error, "response", None)
    return None if response is None else response.headers.get(name)


def _is_full_disk(error: BaseException) -> bool:
    """Whether a disk or quota is full; the downloader of large files says so only in its text."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return type(error) is RuntimeError and "os error 28" in str(error)


def _is_of_network(error: Exception) -> bool:
    if type(error).__module__.partition(".")[0] in _NETWORK_PACKAGES:
        return True
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    # A body that ended early is an OSError without a number; those of the disk have a number. The
    # downloader of large files raises a plain RuntimeError.
    return (type(error) is OSError and error.errno is None) or type(error) is RuntimeError


def _unreachable(error: BaseException) -> Unreachable:
    """The error, with the text of the operating system if that failed."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, OSError) and link.strerror:
            return Unreachable(link.strerror)
        link = link.__cause__ or link.__context__
    return Unreachable(type(error).__name__)
