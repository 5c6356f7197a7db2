"""Programs, modules and Python environments, found by their files.

Imported on the warm path: nothing beyond ``os`` and ``sys``.
"""

# ruff: noqa: PTH100, PTH113, PTH118, PTH120, PTH123
from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


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
    for candidate in _of_folders(directory):
        if os.path.isfile(os.path.join(candidate, "pyvenv.cfg")):
            return candidate
    return _activated(variables) or sys.prefix


def programs(directory: str) -> str:
    """The folder with the programs of the nearest ``.venv`` above; empty without one."""
    inner = "Scripts" if os.name == "nt" else "bin"
    folders = (os.path.join(one, inner) for one in _of_folders(directory))
    return next(filter(os.path.isdir, folders), "")


def _of_folders(directory: str) -> Iterator[str]:
    """The ``.venv`` of a folder and of each one above; they need not exist."""
    folder, below = os.path.abspath(directory), ""
    while folder != below:
        yield os.path.join(folder, ".venv")
        folder, below = os.path.dirname(folder), folder


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
    from fdl.base.files import names

    lib = os.path.join(prefix, "lib")
    return [
        os.path.join(lib, name, "site-packages")
        for name in names(lib)
        if name.startswith("python3")
    ]


def module_file(folders: Iterable[str], name: str, package: str = "__init__.py") -> str | None:
    """The file of a module in the first folder that has it; of a package, this file in it."""
    for folder in folders:
        base = os.path.join(folder, *name.split("."))
        for file in (f"{base}.py", os.path.join(base, package)):
            if os.path.isfile(file):
                return os.path.normpath(file)
    return None


_MOST_FILES = 100
_MOST_BYTES = 16 << 20
_BETWEEN = str.maketrans(",()", "   ")


def content(file: str) -> bytes:
    """The beginning of a file; empty if it cannot be read."""
    try:
        with open(file, "rb") as stream:
            return stream.read(_MOST_BYTES)
    except OSError:
        return b""


def with_imports(files: Iterable[str], folders: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Python files and the modules that they import, each with the beginning of its text.

    A module is searched beside the file, then in the folders. Of many files, the first count.
    """
    waiting, seen = [*files], set[str]()
    while waiting and len(seen) < _MOST_FILES:
        file = waiting.pop(0)
        if file in seen:
            continue
        seen.add(file)
        text = content(file)
        yield file, text
        places = (os.path.dirname(file), *folders)
        waiting += filter(None, (module_file(places, name) for name in _imported(text)))


def _imported(text: bytes) -> Iterator[str]:
    """The modules that a text imports, with the dots of relative ones taken off.

    A parser of Python would take longer than the start of a program.
    """
    statement, is_open = "", False
    for line in text.decode("utf-8", "replace").splitlines():
        statement = f"{statement} {line}" if is_open else line
        first, *rest = statement.translate(_BETWEEN).split() or [""]
        is_open = first == "from" and "(" in statement and ")" not in statement
        if first == "import":
            yield from rest
        elif first == "from" and len(rest) > 2 and not is_open:
            package, _, *names = rest
            package = package.lstrip(".")
            yield package
            yield from (f"{package}.{name}".lstrip(".") for name in names)
