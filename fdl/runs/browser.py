"""Showing a file in the user's browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def show(file: str | Path, environ: Mapping[str, str]) -> bool:
    """Open a file or an address with the desktop's program for it; return whether one was started.

    Without a display or such a program, none is.
    """
    if sys.platform == "win32":
        os.startfile(file)  # noqa: S606 - the user's own report
        return True
    if sys.platform == "darwin":
        opener = "open"
    elif environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"):
        opener = "xdg-open"
    else:
        return False
    program = shutil.which(opener, path=environ.get("PATH"))
    if program is None:
        return False
    done = subprocess.run(
        [program, str(file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode == 0
