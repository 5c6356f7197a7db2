"""What a program prints reaches fdl's own streams, and a run's log.

A stream that is a terminal becomes a second terminal of the same size, so that the program still
colours its output and draws its progress. Keys go to the program directly: its standard input and
its controlling terminal stay those of fdl. Other streams become pipes. Two streams with the same
target stay one, so that the order of their lines stays.

Imported on the warm path of entries.
"""

from __future__ import annotations

import _thread
import os
import time
from contextlib import suppress

from fdl.run.lines import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fdl.run.lines import Lines

_BLOCK = 1 << 16

_LAST_OUTPUT_S = 0.5
"""How long the end of the output is waited for, if a process that was left behind may write on."""


class _Stream:
    """One stream of the program.

    Args:
        target: The descriptor of fdl's own stream.

    Attributes:
        target: The same.
        reading: Where fdl reads what the program writes.
        writing: What the program gets; 0 once it has it.
        is_terminal: Whether it is a terminal.
        ended: Locked until everything is copied.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.is_terminal = os.isatty(target)
        if self.is_terminal:
            self.reading, self.writing = os.openpty()
            self._raw()
            self.resize()
        else:
            self.reading, self.writing = os.pipe()
        self.ended = _thread.allocate_lock()
        self.ended.acquire()

    def _raw(self) -> None:
        """Let fdl's own terminal process the output, which would otherwise happen twice."""
        import termios

        modes = termios.tcgetattr(self.target)
        modes[1] &= ~termios.OPOST
        termios.tcsetattr(self.writing, termios.TCSANOW, modes)

    def resize(self) -> None:
        """Give the terminal the size of fdl's own."""
        import fcntl
        import termios

        with suppress(OSError):
            size = fcntl.ioctl(self.target, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self.reading, termios.TIOCSWINSZ, size)

    def copy(self, lines: Lines | None) -> None:
        """Copy until the program and all that it started have closed the stream."""
        try:
            while data := os.read(self.reading, _BLOCK):
                write_all(self.target, data)
                if lines is not None:
                    lines.feed(data)
        except OSError:
            # So a terminal ends. Or the reader of fdl's output has gone, and the program learns of
            # it when it writes on.
            pass
        finally:
            os.close(self.reading)
            if lines is not None:
                lines.end()
            self.ended.release()


class Copies:
    """The copies of a program's output and error output.

    Args:
        lines: Makes what reads the lines of a stream.

    Attributes:
        file_actions: What gives the program its streams, for :func:`os.posix_spawn`.
    """

    def __init__(self, lines: Callable[[], Lines]) -> None:
        self._lines = lines
        self._streams: list[_Stream] = []
        self.file_actions: list[tuple[int, int, int]] = []
        known: dict[tuple[int, int], _Stream] = {}
        for target in (1, 2):
            try:
                found = os.fstat(target)
            except OSError:
                continue  # it is closed, and the program gets it as it is
            stream = known.get((found.st_dev, found.st_ino))
            if stream is None:
                stream = known[found.st_dev, found.st_ino] = _Stream(target)
                self._streams.append(stream)
            self.file_actions.append((os.POSIX_SPAWN_DUP2, stream.writing, target))

    @property
    def has_terminal(self) -> bool:
        """Whether one of them is a terminal, whose size may change."""
        return any(one.is_terminal for one in self._streams)

    def start(self) -> None:
        """Begin to copy, once the program has its streams."""
        for one in self._streams:
            os.close(one.writing)
            _thread.start_new_thread(one.copy, (self._lines(),))

    def drop(self) -> None:
        """Close everything, because the program was not started."""
        for one in self._streams:
            os.close(one.writing)
            os.close(one.reading)

    def resize(self) -> None:
        """Give the program's terminals the size of fdl's own."""
        for one in self._streams:
            if one.is_terminal:
                one.resize()

    def finish(self) -> None:
        """Wait for the last output; what a process that is left behind prints is copied further."""
        limit = time.monotonic() + _LAST_OUTPUT_S
        left = [
            one
            for one in self._streams
            if not one.ended.acquire(timeout=max(0.0, limit - time.monotonic()))
        ]
        if not left or os.fork():
            return
        # This process has no threads. It lives as long as what was left behind.
        with suppress(OSError):
            os.setsid()
            for one in left[1:]:
                if not os.fork():
                    left = [one]
                    break
            left[0].copy(None)
        os._exit(0)
