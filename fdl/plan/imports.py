"""Whether a Python program uses flodl, by its text and that of its modules.

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

    from fdl.plan.value import Plan

_LIBRARY = "flodl"
_MOST_FILES = 64
_MOST_BYTES = 1 << 20


def uses_flodl(plan: Plan) -> bool:
    """Whether the program of an entry mentions flodl, itself or in a project module it imports.

    The arguments that it gets do not count.
    """
    generated = sum(flag.count for flag in plan.flags) + len(plan.typed)
    words, cwd = plan.argv[: len(plan.argv) - generated], plan.cwd
    if any(_LIBRARY in word for word in words):
        return True
    wanted = _LIBRARY.encode()
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
