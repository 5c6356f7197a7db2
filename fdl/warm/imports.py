"""What a program imports that is not the project's own, read from the text of its files.

Runs in the project's interpreter. Standard library only. Nothing is imported here.
"""

# The paths of requests and answers are strings.
# ruff: noqa: PTH113, PTH118, PTH120, PTH123
from __future__ import annotations

import ast
import os
import site
import sys
import sysconfig
from importlib.util import find_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    # A module, and the names that are taken from it.
    Wanted = tuple[str, tuple[str, ...]]

_MOST_FILES = 500
_FIRST = "torch"
_ON_TORCH = ("torch", "flodl")


def wanted(program: str, is_module: bool, folder: str, root: str) -> list[Wanted]:
    """The imports of a program, torch first, then in the order in which they stand.

    Functions are not read: what they import may never be needed.

    Args:
        program: Path of a script, or name of a module.
        is_module: Which of the two.
        folder: The working directory of the program.
        root: The folder of the project. Its own modules are read, and never imported.
    """
    search = _Search(folder if is_module else os.path.dirname(os.path.realpath(program)), root)
    files = search.of_module(program) if is_module else [program]
    found = search.walk(files)
    if any(name.partition(".")[0] in _ON_TORCH for name, _ in found):
        found.insert(0, (_FIRST, ()))
    return list(dict.fromkeys(found))


def package_folders() -> list[str]:
    """The folders of installed packages, and those of the standard library."""
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [
        *site.getsitepackages(),
        *([site.getusersitepackages()] if site.ENABLE_USER_SITE else []),
    ]
    return list(dict.fromkeys(os.path.realpath(one) for one in found))


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Whether a real path is inside one of these folders."""
    return any(path.startswith(one + os.sep) for one in folders)


class _Search:
    def __init__(self, start: str, root: str) -> None:
        self._start = start
        self._root = os.path.realpath(root)
        self._packages = package_folders()

    def walk(self, files: Iterable[str]) -> list[Wanted]:
        found: list[Wanted] = []
        waiting, seen = list(files), set[str]()
        while waiting and len(seen) < _MOST_FILES:
            path = waiting.pop(0)
            if path in seen:
                continue
            seen.add(path)
            try:
                with open(path, "rb") as stream:
                    tree = ast.parse(stream.read())
            # The program reports it.
            except (OSError, SyntaxError, ValueError):
                continue
            for module, names, level in _imports(tree.body):
                own = self._own(path, module, names, level)
                if own is None:
                    found.append((module, names))
                else:
                    waiting += own
        return found

    def of_module(self, name: str) -> list[str]:
        """The files of a module of the project, with those of its packages."""
        parts = name.split(".")
        found = []
        for count in range(1, len(parts) + 1):
            found += _files(self._start, parts[:count])
        return [*found, *_existing(os.path.join(self._start, *parts, "__main__.py"))]

    def _own(self, path: str, module: str, names: tuple[str, ...], level: int) -> list[str] | None:
        """The project's own files behind an import; None if it is somebody else's."""
        if level:
            folder = path
            for _ in range(level):
                folder = os.path.dirname(folder)
            parts = module.split(".") if module else []
            return [file for name in ("", *names) for file in _files(folder, [*parts, name])]
        parts = module.split(".")
        start = self._start if _files(self._start, parts[:1]) else self._home(parts[0])
        if start is None:
            return None
        tails = [parts[:count] for count in range(1, len(parts) + 1)]
        tails += [[*parts, name] for name in names]
        return [file for tail in tails for file in _files(start, tail)]

    def _home(self, name: str) -> str | None:
        """The folder of the project that holds a module which is found another way."""
        if name in sys.stdlib_module_names:
            return None
        try:
            spec = find_spec(name)
        except (ImportError, ValueError, AttributeError):
            spec = None
        if spec is None:
            return self._start
        places = (
            [spec.origin]
            if spec.has_location and spec.origin
            else [*(spec.submodule_search_locations or ())]
        )
        for place in places:
            real = os.path.realpath(place)
            if is_below(real, [self._root]) and not is_below(real, self._packages):
                home = os.path.dirname(real)
                return (
                    os.path.dirname(home)
                    if spec.submodule_search_locations and spec.has_location
                    else home
                )
        return None


def _imports(body: Iterable[ast.stmt]) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Module, names and level of each import that runs when a file is imported."""
    for one in body:
        if isinstance(one, ast.Import):
            yield from ((alias.name, (), 0) for alias in one.names)
        elif isinstance(one, ast.ImportFrom):
            if one.module != "__future__":
                names = tuple(alias.name for alias in one.names if alias.name != "*")
                yield one.module or "", names, one.level
        elif isinstance(one, ast.If):
            if "TYPE_CHECKING" not in ast.unparse(one.test):
                yield from _imports(one.body)
            yield from _imports(one.orelse)
        elif isinstance(one, ast.Try):
            for part in (
                one.body,
                *(handler.body for handler in one.handlers),
                one.orelse,
                one.finalbody,
            ):
                yield from _imports(part)
        elif isinstance(one, ast.With | ast.ClassDef):
            yield from _imports(one.body)


def _files(folder: str, parts: list[str]) -> list[str]:
    stem = os.path.join(folder, *parts).rstrip(os.sep)
    return [*_existing(f"{stem}.py"), *_existing(os.path.join(stem, "__init__.py"))]


def _existing(path: str) -> list[str]:
    return [path] if os.path.isfile(path) else []
