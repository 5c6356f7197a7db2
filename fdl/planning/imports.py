"""Whether a Python program uses flodl or another library, by its text and that of its modules.

Imported on the warm path of entries. Nothing is started or imported, and only files of the project
are read.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH113, PTH118, PTH120, PTH123
from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fdl.plan import Plan

_MOST_FILES = 64
_MOST_BYTES = 1 << 20


def program_mentions(plan: Plan, *libraries: str) -> bool:
    """Whether the program of an entry mentions a library, without the arguments that it gets."""
    generated = sum(flag.count for flag in plan.flags) + len(plan.typed)
    words = plan.argv[: len(plan.argv) - generated]
    return any(mentions(words, plan.cwd, library) for library in libraries)


def mentions(words: list[str], cwd: str, library: str) -> bool:
    """Whether a program mentions a library, itself or in a project module that it imports."""
    if any(library in word for word in words):
        return True
    wanted = library.encode()
    waiting = [os.path.join(cwd, word) for word in words if word.endswith(".py")]
    if "-m" in words[:-1]:
        module = words[words.index("-m") + 1]
        waiting += [*_files(cwd, module), os.path.join(cwd, *module.split("."), "__main__.py")]
    seen: set[str] = set()
    while waiting and len(seen) < _MOST_FILES:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        try:
            with open(path, "rb") as stream:
                text = stream.read(_MOST_BYTES)
        except OSError:
            continue
        if wanted in text:
            return True
        waiting += [
            file
            for name in _imported(text)
            for root in {cwd, os.path.dirname(path)}
            for file in _files(root, name)
        ]
    return False


def _imported(text: bytes) -> Iterator[str]:
    """The modules that a text imports, with the dots of relative ones taken off."""
    for line in text.decode("utf-8", "replace").splitlines():
        first, *rest = line.replace(",", " ").split()[:8] or [""]
        if first == "import":
            yield from rest
        elif first == "from" and len(rest) > 2:
            package, _, *names = rest
            package = package.lstrip(".")
            yield package
            yield from (f"{package}.{name}".lstrip(".") for name in names)


def _files(root: str, module: str) -> list[str]:
    stem = os.path.join(root, *module.split("."))
    return [
        file for file in (f"{stem}.py", os.path.join(stem, "__init__.py")) if os.path.isfile(file)
    ]
