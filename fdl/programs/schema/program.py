"""The files behind an ``entry``: the script or module that it names, and their imports.

Everything here reads text; nothing is imported or executed.
"""

# The paths of a Level are strings.
# ruff: noqa: PTH113, PTH118, PTH119, PTH120, PTH207
from __future__ import annotations

import os
import re
import shlex
from itertools import pairwise

from fdl.base.venv import content, module_file, with_imports
from fdl.manifest.select.level import Level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PYTHONS = ("python", "pypy")
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
_OTHERS = frozenset(("node", "ruby", "perl", "julia", "Rscript", "deno", "bun"))


def words(level: Level) -> list[str]:
    """The words of the entry; empty if it does not split into words."""
    if level.entry is None:
        return []
    try:
        return shlex.split(str(level.entry.value))
    except ValueError:
        return []


def script(level: Level) -> str | None:
    """The file that the entry runs, if it can be found without running anything.

    Known forms: ``python main.py``, ``python -m package.module``, ``bash run.sh`` and
    ``./program``. A module is searched in the command's folder and the project, each also in
    ``src/``.
    """
    tokens = words(level)
    if not tokens:
        return None
    if not _is_interpreter(tokens[0]):
        # A bare word is found on the PATH, which holds no program of the project.
        return _file(level, tokens[0]) if os.path.dirname(tokens[0]) else None
    for place, token in enumerate(tokens[1:], 1):
        if token == "-m" and _is_python(tokens[0]):
            return _module(level, tokens[place + 1]) if place + 1 < len(tokens) else None
        if token == "-c":
            return None
        if not token.startswith("-") and (file := _file(level, token)):
            return file
    return None


def named_files(level: Level) -> list[str]:
    """Every file among the entry's words, also behind a launcher: ``uv run main.py``."""
    tokens = words(level)
    files = [_file(level, token) for token in tokens]
    modules = [_module(level, name) for flag, name in pairwise(tokens) if flag == "-m"]
    return list(dict.fromkeys(file for file in (*files, *modules) if file))


def sources(level: Level) -> list[str]:
    """The files that decide the program's answer: the named files and the modules they import.

    Only modules of the project count. Arguments are often declared in a module beside the
    script, so an edit there must count.
    """
    found = named_files(level)
    scripts = [file for file in found if file.endswith(".py")]
    read = (file for file, _ in with_imports(scripts, _folders(level)))
    return list(dict.fromkeys((*found, *read)))


def _is_python(token: str) -> bool:
    return os.path.basename(token).startswith(_PYTHONS)


def _is_interpreter(token: str) -> bool:
    return _is_python(token) or os.path.basename(token) in _SHELLS | _OTHERS


def _file(level: Level, token: str) -> str | None:
    path = os.path.normpath(os.path.join(level.start_folder(), token))
    return path if os.path.isfile(path) else None


def _folders(level: Level) -> list[str]:
    """Where the modules of a project are searched."""
    roots = (level.start_folder(), level.root)
    return [folder for root in roots for folder in (root, os.path.join(root, "src"))]


def _module(level: Level, name: str) -> str | None:
    """The file of a module, or the file that runs when its package is started."""
    return module_file(_folders(level), name, "__main__.py")


_LAUNCHERS = frozenset(
    ("accelerate", "torchrun", "deepspeed", "uv", "poetry", "pdm", "hatch", "pipenv")
)
"""First words of entries that start another program, which is named further behind."""

LAUNCHING_MODULES = ("distributed.run", "distributed.launch")
"""Ends of modules that do so, too: ``python -m torch.distributed.run train.py``."""


def script_of(level: Level, packages: Sequence[str]) -> tuple[str | None, str]:
    """The Python file that an entry runs, and the function in it for an installed command.

    Launchers (``accelerate launch``, ``torchrun``, ``uv run``) and modules of installed packages
    are understood, too.

    Args:
        level: Where the entry is.
        packages: Folders with installed packages.
    """
    tokens = words(level)
    if not tokens:
        return None, ""
    if os.path.basename(tokens[0]) in _LAUNCHERS or _is_python(tokens[0]):
        for place, token in enumerate(tokens[1:], 1):
            if token == "-m" and place + 1 < len(tokens):
                module = tokens[place + 1]
                if not module.endswith(LAUNCHING_MODULES):
                    return _module(level, module) or _started(module, packages), ""
            if token.endswith(".py") and (file := _file(level, token)):
                return file, ""
        return _command(tokens, packages)
    file = script(level)
    if file is not None:
        return (file, "") if file.endswith(".py") or b"python" in content(file)[:80] else (None, "")
    return _command(tokens, packages)


def _command(tokens: Sequence[str], packages: Sequence[str]) -> tuple[str | None, str]:
    """The file and the function of a command that a package has installed."""
    wanted = next((word for word in tokens if os.path.basename(word) not in ("run", "uv")), "")
    for folder in packages:
        # Reading all entry points takes milliseconds; nothing is imported.
        for target in _entry_points(folder, os.path.basename(wanted)):
            module, _, function = target.partition(":")
            if file := _started(module, [folder]) or module_file([folder], module):
                return file, function.partition("[")[0].strip()
    return None, ""


def _started(module: str, packages: Sequence[str]) -> str | None:
    """The file that runs when an installed module is started."""
    return module_file(packages, module, "__main__.py")


def _entry_points(folder: str, command: str) -> Iterator[str]:
    import glob

    pattern = re.compile(rf"^{re.escape(command)}\s*=\s*(.+)$", re.MULTILINE)
    for file in glob.glob(os.path.join(glob.escape(folder), "*.dist-info", "entry_points.txt")):
        text = content(file).decode("utf-8", "replace")
        _, _, scripts = text.partition("[console_scripts]")
        if found := pattern.search(scripts.partition("\n[")[0]):
            yield found[1].strip()
