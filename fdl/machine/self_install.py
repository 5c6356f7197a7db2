"""How shells find fdl: a link ``~/.local/bin/fdl``.

Upgrading belongs to the tool that installed fdl; a link keeps pointing to what it upgrades.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from fdl.base.errors import FdlError, failing
from fdl.base.files import staging, text_of
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


def link_path() -> Path:
    """Where ``fdl`` is to stand.

    Raises:
        FdlError: The user has no home folder.
    """
    return home_folder(os.environ) / ".local" / "bin" / ("fdl.exe" if os.name == "nt" else "fdl")


def install(environ: Mapping[str, str], *, dry_run: bool = False) -> str:
    """Link the path to this fdl, and say so; a dry run only checks whether that is possible.

    Raises:
        FdlError: Something else stands there, there is no program to link to, the system has no
            such links, or the folder cannot be written.
    """
    path = link_path()
    shown = f"~/.local/bin/{path.name}"
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    scripts = [Path(sysconfig.get_path("scripts", scheme), path.name) for scheme in schemes]
    script = next((one for one in scripts if one.is_file()), scripts[0])
    hint = _path_hint(path.parent, environ)
    with failing(f"{path} cannot be read", "check its permissions"):
        if path.exists() and script.exists() and path.samefile(script):
            return f"{shown} starts this fdl already.\n{hint}"
        is_foreign = os.path.lexists(path) and not _leads_to_an_fdl(path)
    if os.name == "nt":
        raise FdlError(
            "links need administrator rights on Windows",
            hint=f'add {script.parent} to your Path: Settings, "Edit environment variables"',
        )
    if is_foreign:
        raise FdlError(
            f"{path} is another program, which `fdl install` has not put there; it stays as it is",
            hint=f"move it away and try again: mv {shown} {shown}.old",
        )
    if not script.is_file():
        raise FdlError(f"there is no {script} to link to", hint="install fdl: pip install flodl")
    if dry_run:
        return f"Would link {shown} to {script}.\n{hint}"
    with failing(f"{path} cannot be written", "check the permissions of its folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with staging(path.parent) as folder:
            (folder / path.name).symlink_to(script)
            (folder / path.name).replace(path)
    return f"Linked {shown} to {script}.\n{hint}"


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


def _path_hint(folder: Path, environ: Mapping[str, str]) -> str:
    """What to type so that the shell finds programs of a folder; empty if it does."""
    entries = filter(None, environ.get("PATH", "").split(os.pathsep))
    if folder.resolve() in (Path(entry).expanduser().resolve() for entry in entries):
        return ""
    shell = shell_of(environ)
    line = f'export PATH="{folder}:$PATH"'
    how = "Add it in the start-up file of your shell."
    if shell == "fish":
        how = f"Type, once:\n  fish_add_path {quote(str(folder))}"
    elif shell:
        file = quote(str(start_file(shell, environ)))
        how = f"Type, then open a new shell:\n  echo {quote(line)} >> {file}"
    return f"{folder} is not on your PATH. {how}\n"
