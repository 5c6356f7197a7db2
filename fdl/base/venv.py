"""Programs and Python environments, found by their files.

Imported on the warm path: nothing beyond ``os`` and ``sys``.
"""

# ruff: noqa: PTH100, PTH113, PTH118, PTH120, PTH208
from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def locate(name: str, path: str, cwd: str) -> str | None:
    """The file behind a program name, or None.

    Args:
        name: The name as written. A bare name is looked up; a path is relative to ``cwd``.
        path: The child's ``PATH``, which may differ from fdl's own.
        cwd: The child's working directory. Relative and empty ``PATH`` entries start there.
    """
    if os.path.dirname(name):
        candidates = [os.path.join(cwd, name)]
    else:
        candidates = [os.path.join(cwd, folder, name) for folder in path.split(os.pathsep)]
    for candidate in candidates:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


def project_prefix(directory: str, variables: Mapping[str, str]) -> str:
    """The nearest ``.venv`` above, as for commands; else the activated one, else our own.

    ``poetry run`` activates an environment of its own, and ``pixi run`` one of conda. Both may be
    activated, as with ``pixi run`` in the shell of another environment.

    Args:
        directory: The folder to look from.
        variables: The environment variables.
    """
    folder = os.path.abspath(directory)
    while True:
        candidate = os.path.join(folder, ".venv")
        if os.path.isfile(os.path.join(candidate, "pyvenv.cfg")):
            return candidate
        parent = os.path.dirname(folder)
        if parent == folder:
            return _activated(variables) or sys.prefix
        folder = parent


def _activated(variables: Mapping[str, str]) -> str | None:
    """The activated environment; of two, the one that ``PATH`` names first."""
    names = ("VIRTUAL_ENV", "CONDA_PREFIX")
    found = [variables[name] for name in names if variables.get(name)]
    folders = variables.get("PATH", "").split(os.pathsep)
    programs = [os.path.dirname(python_of(prefix)) for prefix in found]
    places = [folders.index(one) if one in folders else len(folders) for one in programs]
    return found[places.index(min(places))] if found else None


def python_of(prefix: str) -> str:
    """Path of the interpreter of an environment; it need not exist."""
    if prefix == sys.prefix:
        return sys.executable
    names = ("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")
    return os.path.join(prefix, *names)


def interpreter(directory: str, variables: Mapping[str, str]) -> str:
    """The Python of the environment that a folder uses; the one that runs fdl where it has none.

    Args:
        directory: The folder.
        variables: The environment variables.
    """
    python = python_of(project_prefix(directory, variables))
    return python if os.path.isfile(python) else sys.executable


def site_packages(prefix: str) -> list[str]:
    """The folders of installed packages of an environment; they need not exist."""
    if os.name == "nt":
        return [os.path.join(prefix, "Lib", "site-packages")]
    lib = os.path.join(prefix, "lib")
    return [
        os.path.join(lib, name, "site-packages")
        for name in listed(lib)
        if name.startswith("python3")
    ]


def listed(folder: str) -> list[str]:
    """Names in a folder, sorted; none when it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
