"""Copy an example manifest to the real one that git ignores.

On a terminal, ``fdl`` asks first if the example comes from somebody else: git tracks it, and the
last commit that changed it has another e-mail address than the user's. An example that git does
not track is the user's own. If git cannot answer, ``fdl`` asks.
"""

# pathlib would double the start-up time of the first command.
# ruff: noqa: PTH118, PTH119, PTH120, PTH123
from __future__ import annotations

import os
import subprocess
from contextlib import suppress

from fdl import output
from fdl.manifest.discover import Found
from fdl.manifest.source import shown
from fdl.rewrite import put
from fdl.terminal import ask, may_ask

_PATIENCE_S = 2
# The configuration of a foreign repository must not start programs.
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "log.showSignature=false")

# Path of an example -> the manifest to use, because a process may need it several times.
_settled: dict[str, Found] = {}
_agreed: bool | None = None


def settled(found: Found) -> Found:
    """The manifest to use for a command that runs something.

    The user is asked once per process. After a refusal or a failed copy it is the example itself.
    """
    if found.path not in _settled:
        _settled[found.path] = copied(found) if _agrees(found) else found
    return _settled[found.path]


def copied(found: Found) -> Found:
    """Copy an example without a question; a real manifest is returned unchanged."""
    if not found.is_example:
        return found
    example, real = shown(found.path), shown(found.real_path)
    try:
        with open(found.path, "rb") as source:
            put(found.real_path, source.read())
    except OSError as error:
        output.note(f"could not copy {example} to {real} ({error.strerror}); using {example}")
        return found
    name = os.path.basename(found.real_path)
    is_ignored = _in_repository(found.directory) and _git(found, "check-ignore", name) is not None
    output.note(f"Created {real} from {example}{' (git-ignored)' if is_ignored else ''}.")
    return Found(found.directory, name)


def _agrees(found: Found) -> bool:
    """Whether to copy. Enter alone means yes, and so does having no terminal."""
    global _agreed
    if _agreed is None and may_ask() and (author := _foreign_author(found)):
        example, real = shown(found.path), shown(found.real_path)
        while _agreed is None:
            answer = ask(f"{example} was last changed by {author}. Copy it to {real}? [Y/n] ")
            if answer is None or answer.lower() in ("", "y", "yes"):
                _agreed = True
            elif answer.lower() in ("n", "no"):
                _agreed = False
    return _agreed is not False


def _foreign_author(found: Found) -> str:
    """Who changed the example last; empty if that is the user, or if git does not track it."""
    if not _in_repository(found.directory):
        return ""
    author = _git(found, "log", "-1", "--format=%ae", "--", os.path.basename(found.path))
    if author is None:
        has_no_commits = _git(found, "for-each-ref", "--count=1") == ""
        return "" if has_no_commits else "somebody else"
    user = _git(found, "var", "GIT_AUTHOR_IDENT") or ""
    return "" if not author or f"<{author}>".lower() in user.lower() else author


def _in_repository(directory: str) -> bool:
    """Whether a folder is below one that git manages."""
    while not os.path.lexists(os.path.join(directory, ".git")):
        directory, below = os.path.dirname(directory), directory
        if directory == below:
            return False
    return True


def _git(found: Found, *words: str) -> str | None:
    """What git prints in the folder of a manifest; None if it fails."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [*_GIT, *words],
            cwd=found.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
        return None if done.returncode else done.stdout.strip()
    return None
