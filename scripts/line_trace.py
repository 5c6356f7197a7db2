"""Note which lines of some files run; also in processes that a test starts.

:mod:`mutation_runs` puts a copy of this file on the path of those processes, as ``sitecustomize``.
They write what ran into the folder that ``MUTATION_TRACE`` names, at their end.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
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
    """

    def __init__(self, files: Iterable[str]) -> None:
        self._files = frozenset(files)
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
            self._lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._ran


def _write(trace: LineTrace, folder: str) -> None:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    lines = trace.take()
    text = json.dumps({"test": test, "lines": lines})
    with contextlib.suppress(OSError):  # the run is over, or the process has given up its rights
        if lines:
            Path(folder, f"{os.getpid()}-{time.time_ns()}.json").write_text(text, encoding="utf-8")


def _start_from_environment(settings: str) -> None:
    asked = json.loads(settings)
    trace = LineTrace(asked["files"])
    atexit.register(_write, trace, asked["folder"])
    trace.start()


if __name__ == "sitecustomize" and SETTINGS in os.environ:
    _start_from_environment(os.environ[SETTINGS])
