"""A program on a terminal of a given size, and what its screen shows at any moment."""

from __future__ import annotations

import codecs
import os
import select
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyte

from tests import fork_server, typed

ROOT = Path(__file__).parents[2]
LINES = 24
PATIENCE = 120

# Steps of the program wait for a byte through a pipe. Only the order of events decides what is
# drawn: every step draws.
_BEFORE = """
import os, sys

def gate():
    os.read(3, 1)

"""

DRAWN_EACH_STEP = """
from flodl.train.observers import progress
progress.PERIODS["bar"] = 0.0
"""


class Session:
    """A program on a pseudo-terminal.

    Args:
        program: Its text; ``gate()`` in it waits for :meth:`step`.
        columns: Width of the terminal.
        env: Variables besides those of the test.
        stdout: False sends its standard output elsewhere, so that only stderr is the terminal.
        torch: False where the program itself has to import torch for the first time.
    """

    def __init__(
        self,
        program: str,
        columns: int,
        *,
        env: Mapping[str, str] | None = None,
        stdout: bool = True,
        torch: bool = True,
    ) -> None:
        self._master, slave = os.openpty()
        there, self._gate = os.pipe()
        own = {"TERM": "xterm-256color", "COLUMNS": "", "FLODL_VERBOSITY": "normal", **(env or {})}
        self._columns = columns
        termios.tcsetwinsize(slave, (LINES, columns))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        words, env = ("-c", _BEFORE + program), {**os.environ, **own}
        self._process = fork_server.on_terminal(
            *words,
            cwd=ROOT,
            env=env,
            streams=[slave, slave if stdout else nowhere, slave, there],
            torch=torch,
            abrupt=True,
        )
        for stream in (slave, there, nowhere):
            os.close(stream)
        self.text = ""
        # What is read may end within a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        typed.note(words, None, env, lambda: (self._process.poll(), "\n".join(self.screen())))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)
        os.close(self._gate)

    def step(self) -> None:
        """Let the program pass its gate once."""
        os.write(self._gate, b".")

    def press(self, keys: str) -> None:
        """Type on the terminal."""
        os.write(self._master, keys.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait until the terminal has sent the signal: then it shows ``^C``.

        The kernel passes keys on later. A step that follows at once could be done before that.
        """
        shown = self.text.count("^C")
        self.press("\x03")
        self.until(lambda _: self.text.count("^C") > shown)

    def send(self, number: int) -> None:
        """Send a signal to the program."""
        self._process.send_signal(number)

    def screen(self) -> list[str]:
        """The rows of the screen, without empty ones at the end."""
        screen = pyte.Screen(self._columns, LINES)
        pyte.Stream(screen).feed(self.text)
        rows = [row.rstrip() for row in screen.display]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def until(self, shown: Callable[[list[str]], object]) -> list[str]:
        """Read until the screen shows something; return its rows."""
        limit = time.monotonic() + PATIENCE
        while not shown(rows := self.screen()):
            assert time.monotonic() < limit, "\n".join(rows)
            assert self._read(), "ended:\n" + "\n".join(self.screen())
        return rows

    def end(self) -> int:
        """Read to the end of the program; return its exit code."""
        while self._read():
            pass
        return self._process.wait(PATIENCE)

    def _read(self) -> bool:
        ended = self._process.poll() is not None
        if not select.select([self._master], [], [], 0.1)[0]:
            return not ended
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # Linux: the program has closed the terminal
            return False
        self.text += self._decoder.decode(data)
        return bool(data)


def last(part: str) -> Callable[[list[str]], bool]:
    """Whether the last row of a screen contains a text."""
    return lambda rows: bool(rows) and part in rows[-1]
