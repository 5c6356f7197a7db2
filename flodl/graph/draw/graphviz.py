"""Draw with Graphviz, if it is installed."""

from __future__ import annotations

import shutil
import subprocess

from flodl.errors import FlodlError


def render(source: str) -> bytes:
    """Let ``dot`` draw Graphviz source as SVG.

    Raises:
        FlodlError: The program is not on PATH, or it failed.
    """
    program = shutil.which("dot")
    if program is None:
        raise FlodlError(
            "engine='dot' needs Graphviz, and there is no `dot` on PATH; install it (`apt-get "
            "install graphviz`, `brew install graphviz`, `winget install graphviz`), or leave "
            "engine out to draw with the built-in one"
        )
    done = subprocess.run(
        [program, "-Tsvg"],
        input=source.encode(errors="backslashreplace"),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise FlodlError(
            f"{program} -Tsvg ended with status {done.returncode}: {said}; leave engine out to "
            "draw with the built-in one"
        )
    return done.stdout
