"""Newer releases: asking the user's own index, and upgrading with the tool that installed us."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from fdl.errors import FdlError
from fdl.update.installed import OWN_NAME, upgrade_command
from fdl.update.versions import is_newer, release
from fdl.version import __version__

ASK_SECONDS = 15.0
"""How long the index may take."""


@dataclass(frozen=True, slots=True)
class Release:
    """The newest release beside the running version.

    Attributes:
        installed: The running version.
        latest: The newest stable one; None when nobody could be asked.
    """

    installed: str
    latest: str | None

    @property
    def is_newer(self) -> bool:
        """Whether there is something to upgrade to."""
        return self.latest is not None and is_newer(self.latest, self.installed)

    @property
    def verdict(self) -> str:
        """What that means for the user, in one line."""
        if self.latest is None:
            return "the index could not be asked; see `python -m pip index versions flodl`"
        if self.is_newer:
            return f"{self.latest} is newer; to upgrade: {command()}"
        if release(self.installed) > release(self.latest):
            return "newer than the newest release"
        return "up to date"


def newest() -> Release:
    """Ask the index that pip is configured for."""
    from fdl.update.__main__ import latest

    return Release(__version__, latest([OWN_NAME], ASK_SECONDS).get(OWN_NAME))


def command() -> str:
    """What upgrades this fdl: the command of uv, pipx or pip, or git where it is a checkout."""
    folder = Path(__file__).parents[2]
    if folder.name not in ("site-packages", "dist-packages"):
        return f"git -C {shlex.quote(str(folder))} pull"
    return upgrade_command(sys.prefix, [OWN_NAME], is_own=True)


def upgrade() -> None:
    """Run :func:`command`; its output goes to the terminal.

    Raises:
        FdlError: It cannot be started, or fails.
    """
    typed = command()
    try:
        code = subprocess.run(shlex.split(typed), check=False).returncode
    except OSError as error:
        raise FdlError(f"`{typed}` cannot be started: {error.strerror}", hint=typed) from None
    if code:
        raise FdlError(f"`{typed}` failed with exit code {code}", hint="its output is above")
