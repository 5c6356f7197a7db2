"""``~/.local/bin/fdl``: what stands there now, and whether it is ours to replace."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fdl.errors import FdlError

MARKER = "fdl launcher, written by `fdl install`"
"""A line of every launcher, by which it is recognised."""

_PREFIX = "flodl-cli "
_PATIENCE_S = 10
# A launcher is three lines; what is larger is none.
_MOST_BYTES = 4096

Kind = Literal["free", "launcher", "link", "own", "foreign"]


@dataclass(frozen=True, slots=True)
class Place:
    """The path, and what occupies it.

    Attributes:
        path: Where ``fdl`` is to stand.
        kind: ``free``; ``launcher``, written by an earlier installation; ``link``, a symbolic link
            to the ``fdl`` of a virtual environment; ``own``, put there by the installer that
            brought the running fdl; ``foreign``, anything else.
        target: What a link points to.
    """

    path: Path
    kind: Kind
    target: Path | None = None

    @property
    def shown(self) -> str:
        """The path with ``~`` for the home folder."""
        return f"~/{self.path.relative_to(Path.home()).as_posix()}"

    def refuse_foreign(self) -> None:
        """Check that the path may be written.

        Raises:
            FdlError: It belongs to somebody else.
        """
        if self.kind == "foreign":
            what = f"a link to {self.target}" if self.target else "another program"
            raise FdlError(
                f"{self.path} is {what}, which `fdl install` has not put there; it stays as it is",
                hint=f"move it away and try again: mv {self.shown} {self.shown}.old",
            )

    def version(self) -> str | None:
        """The version of the fdl that stands there; None when it does not start."""
        return None if self.kind in ("free", "foreign") else version_of(self.path)


def look() -> Place:
    """What stands where ``fdl`` belongs.

    Raises:
        FdlError: There is no home folder, or the path cannot be read.
    """
    try:
        home = Path.home()
    except RuntimeError:
        home = Path()
    # With an empty HOME, `~` would be the root of the file system.
    if not home.is_absolute() or os.environ.get("HOME") == "":
        raise FdlError("there is no home folder to install into", hint="set HOME")
    path = home / ".local" / "bin" / ("fdl.cmd" if os.name == "nt" else "fdl")
    try:
        return _classify(path)
    except OSError as error:
        raise FdlError(
            f"{path} cannot be read: {error.strerror}", hint="check its permissions"
        ) from None


def version_of(program: Path) -> str | None:
    """What a program called fdl says its version is; None when it does not say."""
    # What only this shell's PYTHONPATH makes work would fail in the next one.
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [str(program), "--version"],
            cwd=program.parent,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = done.stdout.strip()
    return said.removeprefix(_PREFIX) if not done.returncode and said.startswith(_PREFIX) else None


def script() -> Path:
    """The ``fdl`` that the running interpreter's installer has made; it need not exist."""
    name = "fdl.exe" if os.name == "nt" else "fdl"
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    paths = [Path(sysconfig.get_path("scripts", scheme), name) for scheme in schemes]
    return next((path for path in paths if path.is_file()), paths[0])


def _classify(path: Path) -> Place:
    if not os.path.lexists(path):
        return Place(path, "free")
    if path.is_symlink():
        target = path.parent / path.readlink()
        if _same(target, script()):
            return Place(path, "own" if _is_managed(Path(sys.prefix)) else "link", target)
        return Place(path, "link" if _of_environment(target) else "foreign", target)
    if not path.is_file():
        return Place(path, "foreign")
    with path.open("rb") as stream:
        text = stream.read(_MOST_BYTES).decode(errors="replace")
    if MARKER in text:
        return Place(path, "launcher")
    return Place(path, "own" if _same(path, script()) else "foreign")


def _of_environment(target: Path) -> bool:
    """Whether a link leads to the fdl of a virtual environment that no tool looks after.

    One whose environment has been deleted counts as well: nothing of it is left to lose.
    """
    prefix = target.parent.parent
    if target.name not in ("fdl", "fdl.exe") or target.parent.name not in ("bin", "Scripts"):
        return False
    if _is_managed(prefix):
        return False
    return (prefix / "pyvenv.cfg").is_file() or not prefix.exists()


def _is_managed(prefix: Path) -> bool:
    """Whether uv or pipx looks after an environment."""
    return any((prefix / name).is_file() for name in ("uv-receipt.toml", "pipx_metadata.json"))


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)
