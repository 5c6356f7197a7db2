"""Completion in the user's shell: a block in its start-up file.

The block starts nothing: the completion script is asked for at the first TAB behind ``fdl``. So a
new shell opens as fast as before, and always completes for the ``fdl`` installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

from fdl.base.errors import FdlError, failing
from fdl.base.files import put

BEGIN = "# fdl shell completions"
END = "# fdl shell completions end"

_OPENED = re.compile(rf"^[ \t]*{BEGIN}[ \t\r]*$".encode(), re.MULTILINE)
_BEGINS = rf"[ \t]*{BEGIN}[ \t\r]*\n"
# What stands before a second begin is not of a block: the end of the first one was lost.
_BLOCK = re.compile(
    rf"^{_BEGINS}(?:(?!{_BEGINS}).*\n)*?[ \t]*{END}[ \t\r]*(?:\n|\Z)".encode(), re.MULTILINE
)

_SCRIPTS = Path(__file__).parent / "completion_scripts"


Shell = Literal["bash", "zsh", "fish"]
"""A shell in which fdl completes."""

SHELLS = get_args(Shell)


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
    with suppress(RuntimeError):
        # With an empty HOME, `~` would be the root of the file system.
        if variables.get("HOME") != "" and Path.home().is_absolute():
            return Path.home()
    raise FdlError("there is no home folder to install into", hint="set HOME")


def start_file(shell: str, variables: Mapping[str, str]) -> Path:
    """The file that a shell reads whenever a user opens one.

    Raises:
        FdlError: There is no home folder.
    """
    home = home_folder(variables)
    if shell == "zsh":
        return Path(variables.get("ZDOTDIR") or home) / ".zshrc"
    if shell == "fish":
        # A folder that is not absolute counts as none.
        configured = variables.get("XDG_CONFIG_HOME", "")
        folder = configured if os.path.isabs(configured) else home / ".config"  # noqa: PTH117
        return Path(folder, "fish", "config.fish")
    return home / ".bashrc"


def with_block(content: bytes, block: str, file: Path) -> bytes:
    """The content of a start-up file with the block in it, once; all else stays as it is.

    Raises:
        FdlError: A block begins and never ends, so nobody can tell what belongs to it.
    """
    others = _BLOCK.sub(lambda found: b"\n" * found[0].count(b"\n"), content)
    if opened := _OPENED.search(others):
        line = others.count(b"\n", 0, opened.start()) + 1
        raise FdlError(
            f"{file}:{line}: `{BEGIN}` begins a block without `{END}`; nothing was written",
            hint="remove that line and what belongs to it, then run `fdl self autocomplete` again",
        )
    if first := _BLOCK.search(content):
        place = first.start()
        return content[:place] + block.encode() + _BLOCK.sub(b"", content[place:])
    newline = b"" if content.endswith(b"\n") or not content else b"\n"
    return content + newline + block.encode()


def read(file: Path) -> bytes:
    """The content of a start-up file; empty when there is none.

    Raises:
        FdlError: It cannot be read.
    """
    with failing(f"{file} cannot be read"), suppress(FileNotFoundError):
        return file.read_bytes()
    return b""


def replace(file: Path, content: bytes) -> None:
    """Give a start-up file new content as a whole; a link stays one, and its target is written.

    Raises:
        FdlError: That is not possible; the file is as it was.
    """
    hint = "`fdl self autocomplete -n` shows what to add to it"
    with failing(f"{file} cannot be written", hint):
        if file.exists() and not os.access(file, os.W_OK):
            raise PermissionError(13, "it is read-only")
        put(file, content)
