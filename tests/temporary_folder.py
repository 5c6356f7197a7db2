"""One folder for all temporary files of a run of tests, also those of programs that tests kill.

A shell removes it once no process of the run holds its pipe any more: at the end of the run, after
a signal, and after ``kill -9``.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

_FOR_PYTEST = "PYTEST_DEBUG_TEMPROOT"
"""Where pytest keeps the folders of its latest runs, for people to look at."""

# In the background, so that it is not a child of the tests. A program that still ends may write
# once more.
_REMOVE = """
exec 3<&0
{
    trap "" HUP INT TERM
    read -r _ <&3
    rm -rf "$1"
    while [ -e "$1" ]; do
        sleep 1
        rm -rf "$1"
    done
} &
"""


def make() -> None:
    """Make the folder; all temporary files of this process and its children go there."""
    os.environ.setdefault(_FOR_PYTEST, tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="flodl-tests-")
    Path(folder).chmod(0o1777)  # some programs run as another user
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    ends, _ = os.pipe()  # the other end stays open as long as this process lives
    subprocess.run(
        ["sh", "-c", _REMOVE, "sh", folder],
        stdin=ends,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        check=True,
    )
    os.close(ends)
