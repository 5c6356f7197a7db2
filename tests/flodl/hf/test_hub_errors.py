"""What a user reads when the Hub, the network or the disk fails."""

from __future__ import annotations

import errno

import huggingface_hub.errors as hub

from flodl.hf.errors import DiskFull, HubError, RepoNotFound
from flodl.hf.hub_errors import Asked, Unreachable, translated
from tests.rows import each_row

ASKED = Asked("owner/name", "main", "config.json", "https://hub.example", "/cache")


def cause(error: Exception, of: Exception) -> Exception:
    """An error that another one has led to."""
    error.__cause__ = of
    return error


@each_row(
    ("error", "kind", "says"),
    [
        (OSError(errno.ENOSPC, "full"), DiskFull, "no space is left on the disk of /cache for "),
        (OSError(errno.EDQUOT, "quota"), DiskFull, "no space is left on the disk of /cache for "),
        (RuntimeError("failed: (os error 28)"), DiskFull, "no space is left on the disk"),
        (RuntimeError("the stream ended"), Unreachable, "RuntimeError"),
        (OSError("the body ended"), Unreachable, "OSError"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), Unreachable, "refused"),
        (
            cause(RuntimeError("no answer"), ConnectionResetError(errno.ECONNRESET, "reset")),
            Unreachable,
            "reset",
        ),
        (
            cause(hub.LocalEntryNotFoundError("not cached"), OSError(errno.ENOSPC, "full")),
            DiskFull,
            "no space is left",
        ),
        (hub.LocalTokenNotFoundError("none"), HubError, "token=True, but no token is stored"),
        (hub.HFValidationError("a b"), RepoNotFound, "cannot be the name of a repository"),
        (UnicodeEncodeError("ascii", "é", 0, 1, "no"), HubError, "a character that cannot be sent"),
        (hub.FileMetadataError("none"), Unreachable, "the endpoint is not a Hugging Face Hub"),
    ],
)
def test_a_failure_has_an_error_that_says_what_happened(
    error: Exception, kind: type[Exception], says: str
) -> None:
    found = translated(error, ASKED)
    assert type(found) is kind
    assert says in str(found)


def test_an_error_that_has_nothing_to_do_with_the_hub_stays_as_it_is() -> None:
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert translated(denied, ASKED) is denied
