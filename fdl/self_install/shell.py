"""Whether the user's shell finds what was installed, and what to type when it does not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fdl.complete.start_up import shell_of, start_file
from fdl.self_install.place import Place
from fdl.shell_words import quote


def path_hint(place: Place, environ: Mapping[str, str]) -> str:
    """How to make the shell find a program; empty when it does."""
    folder = place.path.parent
    for entry in environ.get("PATH", "").split(os.pathsep):
        if entry and os.path.realpath(Path(entry).expanduser()) == os.path.realpath(folder):
            return ""
    if os.name == "nt":
        return f'Add {folder} to your Path: Settings, "Edit environment variables for your account"'
    missing = f"{folder} is not on your PATH."
    shell = shell_of(environ)
    if shell == "fish":
        return f"{missing} Type, once:\n  fish_add_path {quote(str(folder))}"
    if not shell:
        return f"{missing} Add it in the start-up file of your shell."
    file = start_file(shell, environ)
    line = f'export PATH="{folder}:$PATH"'
    return f"{missing} Type, then open a new shell:\n  echo {quote(line)} >> {quote(str(file))}"
