"""What huggingface_hub raises, said in flodl's own errors and words.

Its messages are not passed on: they hold addresses with signatures, and what a proxy or a header
parser had to say may quote a token.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from flodl.hf.dependencies import need
from flodl.hf.errors import (
    DiskFull,
    FileNotFoundOnHub,
    GatedRepo,
    HubError,
    RepoNotFound,
    RevisionNotFound,
)

# Which HTTP package huggingface_hub is built on depends on its version.
_NETWORK_PACKAGES = frozenset(
    {"requests", "urllib3", "httpx", "httpx2", "httpcore", "httpcore2", "hf_xet", "huggingface_hub"}
)
_TRANSIENT = frozenset({408, 425, 429})
_TOKEN_HINT = "pass token=, set HF_TOKEN, or run hf auth login"


class Unreachable(Exception):  # noqa: N818 - it never leaves the package
    """The Hub gave no usable answer; the cache may do instead. The text says why."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for: ``file`` of ``repo`` at ``revision`` from ``endpoint``, to be kept."""

    repo: str
    revision: str
    file: str
    endpoint: str
    cache_dir: str


def without_credentials(url: str) -> str:
    """The address of an endpoint without the user and password it may hold."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def no_such_file(repo: str, revision: str, file: str) -> FileNotFoundOnHub:
    """The error for a file that the repository does not have."""
    return FileNotFoundOnHub(f"{repo} has no file {file} at {revision}")


def translated(error: Exception, asked: Asked) -> Exception:
    """Say an error of huggingface_hub in our words.

    Returns:
        A :class:`HubError` if the Hub answered, :class:`Unreachable` if it did not, and the error
        itself if it has nothing to do with the Hub: a folder that cannot be written, for instance.
    """
    if _is_full_disk(error):
        return DiskFull(
            f"no space is left on the disk of {asked.cache_dir} for {asked.file} of {asked.repo}: "
            "free some there, or pass cache_dir= (or set HF_HOME) to use another disk"
        )
    hub = need("huggingface_hub.errors")
    if isinstance(error, hub.LocalEntryNotFoundError):
        # What it says is that the cache is no way out; why one was needed is its cause.
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
    if isinstance(error, UnicodeError):  # of a header; the file has not been looked at
        return HubError(f"{asked.repo}: the token holds a character that cannot be sent")
    if isinstance(error, hub.FileMetadataError):
        return Unreachable("what answers there is not a Hub: its headers are missing")
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
    status = _status(error)
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


def header(error: Exception, name: str) -> str | None:
    """A header of the response that an error is about, if it is about one."""
    response = getattr(error, "response", None)
    return None if response is None else response.headers.get(name)


def _status(error: Exception) -> int:
    response = getattr(error, "response", None)
    return 0 if response is None else int(response.status_code)


def _is_full_disk(error: BaseException) -> bool:
    """Whether a disk or a quota is used up; the downloader of large files says so only in words."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return type(error) is RuntimeError and "os error 28" in str(error)


def _is_of_network(error: Exception) -> bool:
    if type(error).__module__.partition(".")[0] in _NETWORK_PACKAGES:
        return True
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    # A body that ended early is an OSError without a number, where those of the disk have one; the
    # downloader of large files raises nothing more special than a RuntimeError.
    return (type(error) is OSError and error.errno is None) or type(error) is RuntimeError


def _unreachable(error: BaseException) -> Unreachable:
    """With the words of the operating system, if it was the one that failed."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, OSError) and link.strerror:
            return Unreachable(link.strerror)
        link = link.__cause__ or link.__context__
    return Unreachable(type(error).__name__)
