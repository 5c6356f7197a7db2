"""Note which lines of some files run; also in processes that a test starts.

:mod:`mutation_runs` puts a copy of this file on the path of those processes, as ``sitecustomize``.
They write what ran into the folder that ``MUTATION_TRACE`` names, at their end. A process that is
killed leaves only a file that says that it ran some of it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

SETTINGS = "MUTATION_TRACE"
"""JSON: the folder for what ran, and the files that count."""


class LineTrace:
    """The lines that ran since the last :meth:`take`, as file and line.

    Args:
        files: Absolute paths of the files that count.
        first: Is called at the first line in this process, and in each process forked from it.
    """

    def __init__(self, files: Iterable[str], first: Callable[[], object] | None = None) -> None:
        self._files = frozenset(files)
        self._first = first
        self._lines: set[tuple[str, int]] = set()

    def start(self) -> None:
        """Watch this thread and those that it starts."""
        threading.settrace(self._called)
        sys.settrace(self._called)

    def take(self) -> dict[str, list[int]]:
        """The lines of each file, and forget them."""
        taken: dict[str, list[int]] = {}
        for file, line in sorted(self._lines):
            taken.setdefault(file, []).append(line)
        self._lines.clear()
        return taken

    def _called(self, frame: FrameType, _event: str, _value: object) -> Callable[..., Any] | None:
        return self._ran if frame.f_code.co_filename in self._files else None

    def _ran(self, frame: FrameType, event: str, _value: object) -> Callable[..., Any]:
        if event == "line":
            if self._first is not None and not self._lines:
                self._first()
            self._lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._ran


def _write(folder: str, ending: str, lines: dict[str, list[int]]) -> None:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    text = json.dumps({"test": test, "lines": lines})
    file = Path(folder, f"{os.getpid()}.{ending}")
    part = file.with_suffix(f".{ending}-part")  # whoever kills this process leaves no half file
    with contextlib.suppress(OSError):  # the process may have given up its rights
        part.write_text(text, encoding="utf-8")
        part.replace(file)


def _start_from_environment(settings: str) -> None:
    asked = json.loads(settings)
    folder = asked["folder"]
    trace = LineTrace(asked["files"], first=lambda: _write(folder, "begun", {}))

    def end() -> None:
        if lines := trace.take():
            _write(folder, "json", lines)

    atexit.register(end)
    os.register_at_fork(after_in_child=trace.take)
    trace.start()


if __name__ == "sitecustomize" and SETTINGS in os.environ:
    _start_from_environment(os.environ[SETTINGS])
