"""Import everything once in a process of its own, and observe what the imports do.

The server imports only what does nothing that a fork would miss: no threads, no output, no question
about the terminal. What they read is what a later run is compared with.

Runs in the project's interpreter. Standard library only.
"""

# The paths of requests and answers are strings.
# ruff: noqa: PTH100, PTH113, PTH123
from __future__ import annotations

import importlib
import io
import json
import os
import sys

from .imports import wanted
from .quiet import reason_not_to_fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .imports import Wanted

_PASSED_OVER = ("/proc/", "/sys/", "/dev/")
_READS_ALL = "*"
_READ_A_PREFIX = ("tqdm.utils",)
"""Modules that look for names with a prefix, which :func:`.facts.is_read_early` knows."""


def main() -> None:
    """Read a task from stdin, and write what happened to stdout, both as JSON."""
    task = json.load(sys.stdin)
    answer = os.dup(1)
    words = _silence()
    if sys.path[:1] == [""]:
        del sys.path[0]
    found: list[Wanted] = []
    for program, is_module, folder in task["programs"]:
        found += wanted(program, is_module, folder, task["root"])
    observer = _Observer()
    report = _import_all(
        found,
        set(task["without"]),
        lambda: reason_not_to_fork() or observer.complaint() or _printed(words),
    )
    report.update(observer.report())
    os.write(answer, json.dumps(report).encode())
    # Threads of an import must not delay the end.
    os._exit(0)


def _import_all(
    found: list[Wanted], skipped: set[str], problem: Callable[[], str]
) -> dict[str, Any]:
    """Import everything up to the first import that a fork would miss, and what packages offer."""
    report: dict[str, Any] = {"imports": [], "bad": "", "why": ""}
    waiting = list(dict.fromkeys(found))
    seen: set[Wanted] = set()
    while waiting:
        one = waiting.pop(0)
        seen.add(one)
        if one[0] not in skipped:
            arrived = load(one)
            if why := problem():
                return {**report, "bad": one[0], "why": why}
            if arrived:
                report["imports"].append(one)
        waiting = waiting or [offer for offer in offered() if offer not in seen]
    return report


def load(one: Wanted) -> bool:
    """Import a module and take names from it; False if the program cannot do that either."""
    module, names = one
    try:
        found = importlib.import_module(module)
        for name in names:
            if not hasattr(found, name):
                importlib.import_module(f"{module}.{name}")
    except (Exception, SystemExit):
        return False
    return True


def offered() -> list[Wanted]:
    """What imported packages name in ``__warm_imports__``: their programs import it later."""
    names = [
        name
        for package, module in list(sys.modules.items())
        if "." not in package
        for name in vars(module).get("__warm_imports__", ())
    ]
    return [(name, ()) for name in names]


def modules_files() -> Iterator[str]:
    """The files of all imported modules, and those that are mapped into memory."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            yield file
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as stream:
        for line in stream:
            path = line.rstrip("\n").partition("/")
            if path[1]:
                yield f"/{path[2]}"


class _Environ(os._Environ[str]):
    """The environment, which notes the names that are read."""

    read: set[str]

    def __getitem__(self, name: str) -> str:
        if not _reads_a_prefix():
            self.read.add(name)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        if not _reads_a_prefix():
            self.read.add(_READS_ALL)
        return super().__iter__()


def _reads_a_prefix() -> bool:
    """Whether one of the modules that go through all variables is doing so."""
    # `items` is one frame more, and so is a generator.
    readers = {sys._getframe(depth).f_globals.get("__name__") for depth in range(2, 5)}
    return not readers.isdisjoint(_READ_A_PREFIX)


class _Stream(io.TextIOWrapper):
    """A standard stream that notes whether somebody asks if it is a terminal."""

    was_asked = False

    def isatty(self) -> bool:
        _Stream.was_asked = True
        return super().isatty()


class _Observer:
    def __init__(self) -> None:
        self._files: set[str] = set()
        self._before = dict(os.environ)
        environ: Any = os.environ
        environ.__class__ = _Environ
        environ.read = set()
        self._environ = environ
        _watch_terminal()
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and not _writes(arguments):
            self._files.add(arguments[0])

    def complaint(self) -> str:
        """What an import did that its result may depend on, as a clause."""
        if _Stream.was_asked:
            return "it asks whether there is a terminal"
        return "it reads all variables" if _READS_ALL in self._environ.read else ""

    def report(self) -> dict[str, Any]:
        """What the imports have read and written."""
        read = sorted(self._environ.read)
        self._environ.__class__ = os._Environ
        after = dict(os.environ)
        names = {*self._before, *after}
        files = {os.path.abspath(one) for one in (*self._files, *modules_files())}
        return {
            "read": read,
            "written": {
                name: after.get(name) for name in names if after.get(name) != self._before.get(name)
            },
            "files": sorted(
                one
                for one in files
                if not one.startswith(_PASSED_OVER)
                and "__pycache__" not in one
                and os.path.isfile(one)
            ),
        }


def _writes(arguments: tuple[Any, ...]) -> bool:
    mode, flags = (*arguments, None, None)[1:3]
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def _silence() -> int:
    """Read from nothing, and print where it can be noticed."""
    words = os.memfd_create("output")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(words, 1)
    os.dup2(words, 2)
    return words


def _printed(words: int) -> str:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    size = os.fstat(words).st_size
    if not size:
        return ""
    text = os.pread(words, 200, 0).decode(errors="replace").strip()
    return f"it prints `{text.splitlines()[0] if text else ''}`"


def _watch_terminal() -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        raw: Any = io.FileIO(number, "wb" if number else "rb", closefd=False)
        buffer: Any = io.BufferedWriter(raw) if number else io.BufferedReader(raw)
        stream = _Stream(buffer, line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    ask = os.isatty

    def asked(descriptor: int) -> bool:
        if descriptor <= 2:
            _Stream.was_asked = True
        return ask(descriptor)

    os.isatty = asked
