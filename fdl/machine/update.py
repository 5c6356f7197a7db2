"""A newer version of fdl: one request a day, one line, and never a wait.

A command that ends on a terminal shows what the request of the day before has found, and starts
the next one in the background. The file that keeps the answer says by its time when was asked.
Anything else about packages is pip's.
"""

# ruff: noqa: PTH110, PTH116, PTH120
from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress

from fdl.base import output
from fdl.base.cache_folder import cache_folder
from fdl.base.files import put, text_of
from fdl.base.terminal import is_set
from fdl.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.cli.prepass import Invocation

OPT_OUT = "FDL_NO_UPDATE_CHECK"
"""The variable that switches the check off."""

ADDRESS = "https://pypi.org/pypi/flodl/json"

_DAY_SECONDS = 24 * 60 * 60

_OFF = (OPT_OUT, "CI", "FDL_PROJECT_ROOT")
"""Variables that switch it off; the last is set for a command of a manifest. If that calls fdl
again, the outer one speaks when all is done."""

# Their output is read by programs, or is itself about the version.
_SILENT = ("__complete", "self", "completions", "install", "version")


def at_exit(invocation: Invocation, *, in_container: bool | None = None) -> None:
    """Say what is known and start a check if one is due, as the last thing of a command.

    Whether fdl runs in a container is looked up when omitted. Nothing is said that cannot be
    remembered: where the file cannot be written, every command would say it again.
    """
    tokens = invocation.tokens
    is_quiet = invocation.json or invocation.verbosity == 0 or "--json" in tokens
    shows_text = invocation.help or invocation.version or not tokens or tokens[0] in _SILENT
    is_off = any(is_set(os.environ, name) for name in _OFF) or os.environ.get("HOME") == ""
    if is_quiet or shows_text or is_off or not sys.stderr.isatty():
        return
    if not (os.path.exists("/.dockerenv") if in_container is None else in_container):
        with suppress(OSError):
            _daily(str(cache_folder() / "latest-version"))


def _daily(file: str) -> None:
    if not os.path.exists(file):
        put(file, b"")
        os.utime(file, (0, 0))
        output.note(
            "once a day, fdl asks pypi.org in the background whether there is a newer version; "
            f"{OPT_OUT}=1 turns that off"
        )
        return
    # A time in the future is what a corrected clock leaves behind.
    if 0 <= time.time() - os.stat(file).st_mtime < _DAY_SECONDS:
        return
    # Noted before it starts: a check that fails is not repeated by every command.
    os.utime(file)
    if line := news(text_of(file)):
        output.note(line)
    # -P: what lies in the folder it runs in is not imported. That folder is ours, not the
    # project's, which could not be removed on Windows while a process runs there.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "fdl.machine.update", file, ADDRESS],
        cwd=os.path.dirname(file), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )  # fmt: skip
    # It outlives us on purpose; without a code its end would be reported as forgotten.
    process.returncode = 0


def news(latest: str) -> str:
    """One line about a newer release and how to install it; empty if there is none."""
    from packaging.version import Version

    from fdl.machine.self_install import upgrade_command

    try:
        newest = Version(latest)
    except ValueError:
        return ""
    if newest.is_prerelease or newest <= Version(Version(__version__).base_version):
        return ""
    installed = f"flodl {newest} is available, {__version__} is installed"
    return f"{installed}; to upgrade: {upgrade_command()}"


def main(file: str, address: str) -> None:
    """Ask for the newest release and keep what was answered; without an answer, keep nothing."""
    import httpx2
    from packaging.version import Version

    nonsense = (httpx2.HTTPError, OSError, ValueError, LookupError, TypeError, RecursionError)
    with suppress(*nonsense):
        answer = httpx2.get(address, headers={"User-Agent": f"fdl/{__version__}"})
        put(file, str(Version(answer.raise_for_status().json()["info"]["version"])).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
