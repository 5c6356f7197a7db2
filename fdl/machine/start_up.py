"""The block that turns completion on in the start-up file of a shell.

The block itself starts nothing: the completion script is asked for at the first TAB behind
``fdl``, so a new shell opens as fast as before, and always completes for the ``fdl`` installed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from fdl.base.errors import FdlError
from fdl.base.rewrite import put

BEGIN = "# fdl shell completions"
END = "# fdl shell completions end"

_SCRIPTS = Path(__file__).parent / "completion_scripts"


class Shell(StrEnum):
    """The shells in which fdl completes."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


SHELLS = tuple(Shell)


def script(shell: str) -> str:
    """The completion script of one of ``SHELLS``."""
    return (_SCRIPTS / f"fdl.{shell}").read_text(encoding="utf-8")


def block(shell: str) -> str:
    """The lines for the start-up file of one of ``SHELLS``, between their two marks."""
    lines = (_SCRIPTS / f"lazy.{shell}").read_text(encoding="utf-8")
    return f"{BEGIN}\n{lines}{END}\n"


def shell_of(variables: Mapping[str, str]) -> str:
    """The user's shell, if it is one of ``SHELLS``; else empty."""
    name = variables.get("SHELL", "").rpartition("/")[2]
    return name if name in SHELLS else ""


def home_folder(variables: Mapping[str, str]) -> Path:
    """The home folder of the user.

    Raises:
        FdlError: The user has none.
    """
    try:
        home = Path.home()
    except RuntimeError:
        home = Path()
    # With an empty HOME, `~` would be the root of the file system.
    if not home.is_absolute() or variables.get("HOME") == "":
        raise FdlError("there is no home folder to install into", hint="set HOME")
    return home


def start_file(shell: str, variables: Mapping[str, str]) -> Path:
    """The file that a shell reads whenever a user opens one.

    Raises:
        FdlError: There is no home folder.
    """
    home = home_folder(variables)
    if shell == "zsh":
        return Path(variables.get("ZDOTDIR") or home) / ".zshrc"
    if shell == "fish":
        configured = Path(variables.get("XDG_CONFIG_HOME") or home / ".config")
        folder = configured if configured.is_absolute() else home / ".config"
        return folder / "fish" / "config.fish"
    return home / ".bashrc"


def with_block(content: bytes, block: str, file: Path) -> bytes:
    """The content of a start-up file with the block in it, once; all else stays as it is.

    Raises:
        FdlError: A block begins and never ends, so nobody can tell what belongs to it.
    """
    kept: list[bytes] = []
    place: int | None = None
    opened = 0
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        mark = line.strip()
        if opened:
            opened = 0 if mark == END.encode() else opened
        elif mark == BEGIN.encode():
            opened = number
            place = len(kept) if place is None else place
        else:
            kept.append(line)
    if opened:
        raise FdlError(
            f"{file}:{opened}: `{BEGIN}` begins a block without `{END}`; nothing was written",
            hint="remove that line and what belongs to it, then run `fdl autocomplete` again",
        )
    if place is None:
        place = len(kept)
        if kept and not kept[-1].endswith(b"\n"):
            kept[-1] += b"\n"
    kept.insert(place, block.encode())
    return b"".join(kept)


def read(file: Path) -> bytes:
    """The content of a start-up file; empty when there is none.

    Raises:
        FdlError: It cannot be read.
    """
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as problem:
        raise FdlError(f"{file} cannot be read: {problem.strerror}") from None


def replace(file: Path, content: bytes) -> None:
    """Give a start-up file new content as a whole; a link stays one, and its target is written.

    Raises:
        FdlError: That is not possible; the file is as it was.
    """
    try:
        if file.exists() and not os.access(file, os.W_OK):
            raise PermissionError(13, "it is read-only")
        put(file, content)
    except OSError as problem:
        raise FdlError(
            f"{file} cannot be written: {problem.strerror}",
            hint="`fdl autocomplete -n` shows what to add to it",
        ) from None
