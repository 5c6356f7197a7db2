"""The check itself: ``python -m fdl.update FILE SECONDS NAME…``, started in the background.

It asks the user's own pip, so that mirrors, proxies, credentials and certificates are what they
are for every installation; fdl knows no address of its own.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress

from fdl.update.state import read, write
from fdl.update.versions import newest_stable

_AVAILABLE = "Available versions:"
_MAX_ANSWER_BYTES = 1 << 20


def main(arguments: list[str]) -> int:
    """Ask for the newest versions and remember what came in time.

    The arguments are the state file, a budget in seconds, and names of packages.
    """
    file, seconds, *names = arguments
    found = latest(names, float(seconds))
    if found:
        # Read again: commands have ended in the meantime and remembered what they said.
        state = read(file)
        state.latest_known.update(found)
        write(file, state)
    return 0


def latest(names: list[str], seconds: float) -> dict[str, str]:
    """The newest stable version of each package, as far as known after ``seconds`` for all.

    All packages are asked for at once; what has not answered in time is stopped.
    """
    pip = _pip()
    if pip is None:
        return {}
    limit = time.monotonic() + seconds
    asked = {name: _ask(pip, name) for name in names}
    found = {}
    for name, process in asked.items():
        version = newest_stable(_answer(process, limit - time.monotonic()))
        if version is not None:
            found[name] = version
    return found


def _pip() -> list[str] | None:
    """The pip of this environment; where it has none (uv, pipx), the one on the ``PATH``."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip") or shutil.which("pip3")
    return [found] if found else None


def _ask(pip: list[str], name: str) -> subprocess.Popen[bytes] | None:
    options = ["--no-input", "--no-color", "--disable-pip-version-check"]
    try:
        return subprocess.Popen(
            [*pip, "index", "versions", *options, name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=os.name != "nt",
        )
    except OSError:
        return None


def _answer(process: subprocess.Popen[bytes] | None, seconds: float) -> list[str]:
    """The versions one pip knows; none when it failed or did not finish in time."""
    if process is None:
        return []
    try:
        text, _ = process.communicate(timeout=max(seconds, 0))
    except subprocess.TimeoutExpired:
        _stop(process)
        return []
    if process.returncode != 0 or len(text) > _MAX_ANSWER_BYTES:
        return []
    for line in text.decode(errors="replace").splitlines():
        if line.startswith(_AVAILABLE):
            return [version.strip() for version in line.removeprefix(_AVAILABLE).split(",")]
    return []


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a pip with all it has started, such as a keyring."""
    if sys.platform != "win32":
        with suppress(OSError):
            os.killpg(process.pid, 9)
    process.kill()
    process.communicate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
