"""How shells find fdl: a link ``~/.local/bin/fdl``.

Upgrading belongs to the tool that installed fdl; a link keeps pointing to what it upgrades.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fdl.base.errors import FdlError, failing
from fdl.base.files import text_of
from fdl.base.shell_words import join, quote
from fdl.machine.completion import home_folder, shell_of, start_file

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


def install(place: Place, environ: Mapping[str, str], *, dry_run: bool = False) -> list[str]:
    """Let the place start this fdl; the lines to tell the user.

    Raises:
        FdlError: As :func:`link` does.
    """
    if place.kind == "this":
        line = f"{place.shown} starts this fdl already."
    else:
        link(place, dry_run=dry_run)
        line = f"{'Would link' if dry_run else 'Linked'} {place.shown} to {place.script}."
    hint = path_hint(place, environ)
    return [line, hint] if hint else [line]


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
