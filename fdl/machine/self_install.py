"""How shells find fdl: a link ``~/.local/bin/fdl``, and a block for completion in a start-up file.

Upgrading belongs to the tool that installed fdl; a link keeps pointing to what it upgrades. The
block itself starts nothing: the completion script is asked for at the first TAB behind ``fdl``. So
a new shell opens as fast as before, and always completes for the ``fdl`` installed.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from fdl.base.errors import FdlError, failing
from fdl.base.files import put, text_of
from fdl.base.shell_words import join, quote

BEGIN = "# fdl shell completions"
END = "# fdl shell completions end"

_SCRIPTS = Path(__file__).parent / "completion_scripts"


_MANAGERS = {"uv-receipt.toml": "uv tool", "pipx_metadata.json": "pipx"}
"""A file in a virtual environment -> the tool that looks after this environment."""


def _manager(prefix: Path) -> str:
    """The tool that looks after a virtual environment; empty if none does."""
    return next((tool for mark, tool in _MANAGERS.items() if (prefix / mark).is_file()), "")


def upgrade_command() -> str:
    """What to type to upgrade this fdl: the command of the tool that installed it."""
    code = Path(__file__).absolute().parents[2]
    if code.name not in ("site-packages", "dist-packages"):
        return join(["git", "-C", str(code), "pull"])
    prefix = Path(sys.prefix)
    if tool := _manager(prefix):
        return f"{tool} upgrade flodl"
    # Environments of uv say so in their configuration, and hold no pip.
    if "\nuv = " in text_of(prefix / "pyvenv.cfg"):
        return join(["uv", "pip", "install", "--python", sys.prefix, "--upgrade", "flodl"])
    return join([sys.executable, "-m", "pip", "install", "--upgrade", "flodl"])


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
            hint="remove that line and what belongs to it, then run `fdl self autocomplete` again",
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


@dataclass(frozen=True, slots=True)
class Place:
    """The path, and what occupies it.

    Attributes:
        path: Where ``fdl`` is to stand.
        script: The ``fdl`` that the installer of this Python has made.
        kind: ``free``; ``this``, which starts the running fdl; ``link``, to the fdl of another
            virtual environment; ``foreign``, anything else.
    """

    path: Path
    script: Path
    kind: Literal["free", "this", "link", "foreign"]

    @property
    def shown(self) -> str:
        """The path with ``~`` for the home folder."""
        return f"~/{self.path.relative_to(Path.home()).as_posix()}"


def look() -> Place:
    """What stands where ``fdl`` belongs.

    Raises:
        FdlError: The user has no home folder, or the path cannot be read.
    """
    home = home_folder(os.environ)
    name = "fdl.exe" if os.name == "nt" else "fdl"
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    scripts = [Path(sysconfig.get_path("scripts", scheme), name) for scheme in schemes]
    script = next((path for path in scripts if path.is_file()), scripts[0])
    path = home / ".local" / "bin" / name
    with failing(f"{path} cannot be read", "check its permissions"):
        if not os.path.lexists(path):
            return Place(path, script, "free")
        if path.exists() and script.exists() and path.samefile(script):
            return Place(path, script, "this")
        return Place(path, script, "link" if _leads_to_an_fdl(path) else "foreign")


def link(place: Place, *, dry_run: bool = False) -> None:
    """Link the place to this fdl; with ``dry_run``, only find out whether that is possible.

    Raises:
        FdlError: Something else stands there, there is no program to link to, the system has no
            such links, or the folder cannot be written.
    """
    path, script = place.path, place.script
    if os.name == "nt":
        raise FdlError(
            "links need administrator rights on Windows",
            hint=f'add {script.parent} to your Path: Settings, "Edit environment variables"',
        )
    if place.kind == "foreign":
        raise FdlError(
            f"{path} is another program, which `fdl install` has not put there; it stays as it is",
            hint=f"move it away and try again: mv {place.shown} {place.shown}.old",
        )
    if not script.is_file():
        raise FdlError(f"there is no {script} to link to", hint="install fdl: pip install flodl")
    if dry_run:
        return
    temporary = path.with_name(f".fdl.{os.getpid()}.tmp")
    with failing(f"{path} cannot be written", "check the permissions of its folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.symlink_to(script)
        try:
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def path_hint(place: Place, environ: Mapping[str, str]) -> str:
    """What to type so that the shell finds the link; empty if it does."""
    folder = place.path.parent
    for entry in environ.get("PATH", "").split(os.pathsep):
        if entry and os.path.realpath(Path(entry).expanduser()) == os.path.realpath(folder):
            return ""
    missing = f"{folder} is not on your PATH."
    shell = shell_of(environ)
    if shell == "fish":
        return f"{missing} Type, once:\n  fish_add_path {quote(str(folder))}"
    if not shell:
        return f"{missing} Add it in the start-up file of your shell."
    line = f'export PATH="{folder}:$PATH"'
    file = quote(str(start_file(shell, environ)))
    return f"{missing} Type, then open a new shell:\n  echo {quote(line)} >> {file}"


def _leads_to_an_fdl(path: Path) -> bool:
    """Whether a path is a link to the fdl of a virtual environment that no tool looks after.

    One whose environment has been deleted counts as well: nothing of it is left to lose.
    """
    if not path.is_symlink():
        return False
    target = path.parent / path.readlink()
    prefix = target.parent.parent
    is_fdl = target.name == path.name and target.parent.name in ("bin", "Scripts")
    is_environment = (prefix / "pyvenv.cfg").is_file() or not prefix.exists()
    return is_fdl and is_environment and not _manager(prefix)
