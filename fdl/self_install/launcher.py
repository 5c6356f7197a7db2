"""Making ``~/.local/bin/fdl``: a launcher for everyday use, or a link for work on fdl itself."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fdl.errors import FdlError
from fdl.self_install.place import MARKER, Place, script, version_of
from fdl.version import __version__

_MOST_LINKS = 40


def text(interpreter: str, *, windows: bool = os.name == "nt") -> str:
    """A launcher that starts fdl with an interpreter, for cmd.exe or for a POSIX shell."""
    # -P: a folder called fdl, where somebody happens to stand, is not imported.
    if windows:
        quoted = interpreter.replace("%", "%%")
        return f'@echo off\r\nrem {MARKER}\r\n"{quoted}" -P -m fdl %*\r\n'
    return f'#!/bin/sh\n# {MARKER}\nexec {shlex.quote(interpreter)} -P -m fdl "$@"\n'


def write(place: Place, *, dry_run: bool = False) -> bool:
    """Put a launcher bound to the running interpreter there; False when it stands there already.

    With ``dry_run``, only find out whether that would change anything.

    Raises:
        FdlError: The place is not ours, or cannot be written, or the launcher would not start.
    """
    place.refuse_foreign()
    content = text(sys.executable)
    if place.kind == "launcher" and place.path.read_bytes().decode(errors="replace") == content:
        return False
    if place.kind == "own":
        return False
    if dry_run:
        return True
    with _neighbour(place.path) as temporary:
        temporary.write_text(content, encoding="utf-8", newline="")
        temporary.chmod(0o755)
        if version_of(temporary) != __version__:
            raise FdlError(
                f"{sys.executable} does not find this fdl once another folder is the current one, "
                "so a launcher would not start",
                hint=shlex.join([sys.executable, "-m", "pip", "install", "flodl"]),
            )
    return True


def link(place: Place, *, dry_run: bool = False) -> Path | None:
    """Link to the ``fdl`` of the running interpreter, so that changes to its source count at once.

    With ``dry_run``, only find out what the link would point to.

    Returns:
        What it points to; None when it does already.

    Raises:
        FdlError: The system has no such links, there is nothing to link to, the link would lead
            to itself, or the place is not ours.
    """
    if os.name == "nt":
        raise FdlError("--dev makes a symbolic link, which needs Unix", hint="fdl install")
    source = script()
    if not source.exists():
        raise FdlError(
            f"there is no {source} to link to", hint=f"{sys.executable} -m pip install -e CHECKOUT"
        )
    if _leads_to(source, place.path):
        raise FdlError(
            f"{place.path} would be a link to itself: it is the fdl that is running",
            hint="start the fdl of your checkout: .venv/bin/fdl install --dev",
        )
    place.refuse_foreign()
    if place.target is not None and place.target == source:
        return None
    if not dry_run:
        with _neighbour(place.path) as temporary:
            temporary.symlink_to(source)
    return source


def _leads_to(source: Path, path: Path) -> bool:
    """Whether following a path, link by link, comes by another."""
    for _ in range(_MOST_LINKS):
        if source.name == path.name and _folder(source) == _folder(path):
            return True
        if not source.is_symlink():
            return False
        source = source.parent / source.readlink()
    return True


def _folder(path: Path) -> str:
    return os.path.realpath(path.parent)


@contextmanager
def _neighbour(path: Path) -> Iterator[Path]:
    """A temporary path beside another, which takes its place when the block ends well."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise FdlError(
            f"{path} cannot be written: {error.strerror}",
            hint="check the permissions of its folder",
        ) from None
    finally:
        with suppress(OSError):
            temporary.unlink()
