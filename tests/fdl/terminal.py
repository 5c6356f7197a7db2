"""Starting ``fdl`` where it matters what it runs in: on a terminal, outside every container."""

from __future__ import annotations

import codecs
import os
import select
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path

import pyte

from tests import fork_server, typed

# The tests themselves may run in a container, where fdl wraps nothing.
_OUTSIDE = """
import os, sys
from fdl.cli.entry import main
from fdl.plan.planner import Host
sys.exit(main(sys.argv[1:], Host(os.environ, in_container=False, terminal=TERMINAL)))
"""

PATIENCE = 120

# On a terminal fdl would ask about updates, and remember that in the developer's own home.
_QUIET = {"CI": "", "FDL_NO_UPDATE_CHECK": "1", "TERM": "xterm"}


class Terminal:
    """A session on a pseudo-terminal: read what appears, press keys, wait for the end.

    Args:
        args: What is typed after ``fdl``, or the arguments of the program.
        cwd: Where.
        env: Variables besides those of the test.
        program: The text of a Python program to start instead of fdl.
        size: Lines and columns of the terminal.
        alone: ``env`` is the whole environment, and not an addition to that of the test.
        patience: Seconds until what was started has to end.
    """

    def __init__(
        self,
        *args: str,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        program: str | None = None,
        size: tuple[int, int] | None = None,
        alone: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        self._patience = patience
        self._master, slave = os.openpty()
        # What makes it readable may be gone when it is read.
        os.set_blocking(self._master, False)
        _keep_output(slave)
        if size is not None:
            termios.tcsetwinsize(slave, size)
        around = {} if alone else {**os.environ, **_QUIET}
        env = {**around, **(env or {})}
        self._process = _start(args, cwd, env, program, slave)
        os.close(slave)
        self.text = ""
        self._size = size or (24, 80)
        typed.note((*(("-c", program) if program else ("-m", "fdl")), *args), cwd, env, self._seen)
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._master >= 0:
            os.close(self._master)

    def _seen(self) -> tuple[int | None, str]:
        """The exit code, and the screen."""
        lines, columns = self._size
        screen = pyte.Screen(columns, lines)
        pyte.Stream(screen).feed(self.text)
        return self._process.poll(), "\n".join(line.rstrip() for line in screen.display)

    @property
    def pid(self) -> int:
        """Process id of what was started."""
        return self._process.pid

    def hang_up(self) -> None:
        """Close the terminal, as a window that goes or a connection that breaks."""
        os.close(self._master)
        self._master = -1

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, lines: int, columns: int) -> None:
        """Change the size of the window."""
        self._size = lines, columns
        termios.tcsetwinsize(self._master, self._size)

    def press_until_it_ends(self, keys: str) -> int:
        """Press again and again, with a pause as people make one; returns the exit code."""
        limit = time.monotonic() + self._patience
        while self._process.poll() is None:
            assert time.monotonic() < limit, f"still there: {self.text!r}"
            self.press(keys)
            pause = time.monotonic() + 0.3
            while time.monotonic() < pause and self._read():
                pass
        return self.finish()

    def read_until(self, word: str) -> None:
        limit = time.monotonic() + self._patience
        while word not in self.text:
            assert time.monotonic() < limit, f"{word!r} never appeared in {self.text!r}"
            if not self._read():
                assert word in self.text, f"ended without {word!r}: {self.text!r}"

    def finish(self) -> int:
        """Read to the end and return the exit code."""
        limit = time.monotonic() + self._patience
        while self._master >= 0 and self._read():
            assert time.monotonic() < limit, f"still there: {self.text!r}"
        return self._process.wait(self._patience)

    def _read(self) -> bool:
        """Take what is there; False when the other side has hung up or left nothing behind."""
        ended = self._process.poll() is not None
        if not select.select([self._master], [], [], 0.1)[0]:
            return not ended
        try:
            data = os.read(self._master, 4096)
        except BlockingIOError:
            return not ended
        except OSError:  # how Linux says that the last holder of the other side is gone
            return False
        self.text += self._decoder.decode(data)
        return bool(data)


def _start(
    args: tuple[str, ...], cwd: Path, env: Mapping[str, str], program: str | None, terminal: int
) -> fork_server.Child | subprocess.Popen[bytes]:
    words = ("-m", "fdl") if program is None else ("-c", program)
    streams = [terminal] * 3
    return fork_server.on_terminal(*words, *args, cwd=cwd, env=env, streams=streams, abrupt=True)


def _keep_output(terminal: int) -> None:
    """Let Ctrl-C leave alone what was printed and not read yet; Linux throws it away else."""
    iflag, oflag, cflag, lflag, *rest = termios.tcgetattr(terminal)
    termios.tcsetattr(
        terminal, termios.TCSANOW, [iflag, oflag, cflag, lflag | termios.NOFLSH, *rest]
    )


def outside_container(
    *args: str, cwd: Path, env: Mapping[str, str] | None = None, terminal: bool = False
) -> subprocess.CompletedProcess[str]:
    """Type ``fdl ARGS`` on a machine that is no container itself."""
    return fork_server.python(
        *("-c", _OUTSIDE.replace("TERMINAL", str(terminal)), *args),
        cwd=cwd,
        env={**os.environ, **_QUIET, **(env or {})},
        timeout=PATIENCE,
        abrupt=True,
    )
