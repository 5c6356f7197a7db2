"""A person at a terminal: commands typed one after the other, and the screen after each."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pyte

from tests.fdl import screen


@dataclass(frozen=True)
class Answer:
    """What a command printed, and what the person sees then."""

    line: str
    exit: int
    raw: str
    visible: list[str]


class Session:
    """A terminal in a folder. ``cd`` and ``fdl`` are the commands it knows."""

    def __init__(self, folder: Path, home: Path, columns: int = 80, rows: int = 24) -> None:
        self.columns, self.rows = columns, rows
        self._folder, self._home = folder, home
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.Stream(self._screen)

    def type(self, line: str) -> Answer:
        """Type a line, wait for the end of the command."""
        program, *words = shlex.split(line, comments=True)
        code, raw = 0, ""
        if program == "cd":
            self._folder /= words[0]
        else:
            assert program == "fdl", line
            code, raw = screen.typed(
                *words, cwd=self._folder, columns=self.columns, rows=self.rows, env=self._env()
            )
        self._stream.feed(f"$ {line}\r\n{raw}")
        if self._screen.cursor.x:
            self._stream.feed("\r\n")
        return Answer(line, code, raw, [row.rstrip() for row in self._screen.display])

    def _env(self) -> dict[str, str]:
        """The variables of a person who has set nothing."""
        unset = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "FLODL_COLOR", "FLODL_VERBOSITY")
        return {
            **dict.fromkeys((*unset, "FDL_ENV", "HF_TOKEN"), ""),
            "TERM": "xterm-256color",
            # The settings of the heap depend on the C library of the machine.
            "FDL_MEMORY": "default",
            # On a busy machine the import of torch takes longer than the usual limit.
            "FDL_SCHEMA_SECONDS": "120",
            "HOME": str(self._home),
            "FLODL_HOME": str(self._home / ".flodl"),
            "FLODL_CACHE_DIR": str(self._home / ".cache/flodl"),
            # As in an activated environment.
            "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"],
        }
