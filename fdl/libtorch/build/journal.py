"""Run the commands of a build: all output goes to one file, ninja's counter to the screen."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Self, TextIO

from fdl.base.errors import BuildError
from fdl.base.progress import Progress
from fdl.base.shell_words import join
from fdl.libtorch.build.plan import Step

_SHOWN_LINES = 4
"""Lines of output in the message about a failure."""

_GRACE_S = ((signal.SIGINT, 15.0), (signal.SIGTERM, 5.0))
"""Signals to a process group before it is killed, and the time for each. On the first signal, ninja
ends its compilers and deletes half-written files."""

_LEFTOVER_S = 5.0
"""Time for output after a command has ended; a compiler cache that keeps running as a server keeps
the pipe open forever."""


class Counter:
    """Reads ninja's ``[12/3456]``, also after the prefix that BuildKit puts before every line."""

    _SEEN = re.compile(r"(?:#\d+ \d+\.\d+ )?\[(\d+)/(\d+)\] ")

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._largest = 0

    def read(self, line: str) -> None:
        """Read one line of output."""
        match = self._SEEN.match(line)
        if match is None:
            return
        done, total = int(match[1]), int(match[2])
        self._largest = max(self._largest, total)
        # Submodules run their own ninja; the total of the main one shrinks only a little.
        if total * 2 < self._largest:
            return
        if total != self._progress.total:
            self._progress.start(total, done)
        self._progress.update(done)

    def finish(self) -> None:
        """Count the last step; ninja announces a step when it begins, not when it ends."""
        self._progress.update(self._progress.total)


class Journal:
    """The log of one call, appended to that of earlier calls; a context manager."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._log: TextIO | None = None
        self._tail: deque[str] = deque(maxlen=_SHOWN_LINES)

    def __enter__(self) -> Self:
        try:
            self._log = self._file.open("a", encoding="utf-8", buffering=1)
        except OSError as problem:
            raise BuildError(
                f"cannot write {self._file}: {problem.strerror}",
                hint="choose a store you may write to, such as your own: "
                "fdl libtorch build --global",
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._log is not None:
            self._log.close()

    def write(self, line: str) -> None:
        """Add a line of fdl to the log."""
        if self._log is not None:
            self._log.write(f"{line}\n")

    def run(self, step: Step, counter: Counter | None = None) -> None:
        """Run one command to its end; the counter also reads its output.

        The command gets its own session: it cannot read the terminal, and Ctrl-C there reaches it
        only through :meth:`_stop`.

        Raises:
            BuildError: It cannot be started, or it failed; with the end of its output.
            KeyboardInterrupt: The user interrupted; the whole process group has ended.
        """
        self.write(f"{time.strftime('%H:%M:%S')} $ {join(step.argv)}")
        self._tail.clear()
        try:
            child = subprocess.Popen(
                step.argv,
                cwd=step.cwd,
                env={**os.environ, **step.env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except OSError as problem:
            raise BuildError(
                f"cannot start `{join(step.argv)}` in {step.cwd}: {problem.strerror}",
                hint="install what is missing, then run the same command again",
            ) from None
        code = self._attend(child, counter)
        if code != 0 and not step.may_fail:
            raise self._failure(step, code)

    def _attend(self, child: subprocess.Popen[str], counter: Counter | None) -> int:
        assert child.stdout is not None  # noqa: S101 -- it was asked for
        reader = threading.Thread(target=self._copy, args=(child.stdout, counter), daemon=True)
        reader.start()
        try:
            code = child.wait()
            reader.join(_LEFTOVER_S)
        except KeyboardInterrupt:
            self._stop(child, reader)
            raise
        if not reader.is_alive():
            child.stdout.close()
        return code

    def _copy(self, output: IO[str], counter: Counter | None) -> None:
        for line in output:
            text = line.rstrip("\n")
            self._tail.append(text)
            try:
                self.write(text)
            except (OSError, ValueError):
                # A full disk, or a closed log: the command must not wait for the log.
                continue
            if counter is not None:
                counter.read(text)

    def _stop(self, child: subprocess.Popen[str], reader: threading.Thread) -> None:
        """End the whole process group; its output ends when its last process has ended."""
        for number, patience in (*_GRACE_S, (signal.SIGKILL, 1.0)):
            try:
                _signal_group(child, number)
                reader.join(patience)
            except KeyboardInterrupt:
                continue
            if not reader.is_alive():
                break
        child.wait()
        self.write(f"{time.strftime('%H:%M:%S')} interrupted")

    def _failure(self, step: Step, code: int) -> BuildError:
        ended = f"exit code {code}" if code > 0 else f"signal {-code}"
        lines = "".join(f"\n  {line}" for line in self._tail)
        return BuildError(
            f"`{join(step.argv[:4])}{' …' if len(step.argv) > 4 else ''}` failed with {ended}"
            f"{'; its last lines:' if lines else ''}{lines}",
            hint=f"all output is in {self._file}; fix the cause, then run the same command "
            "again: it continues where it stopped",
        )


def _signal_group(child: subprocess.Popen[str], number: int) -> None:
    if sys.platform == "win32":
        child.terminate()
        return
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)
