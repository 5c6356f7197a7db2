"""The terminal of a training program: a status line, the bar of an epoch, lines and tables.

Only this module moves the cursor. rich is imported when the first bar is drawn, so that a status
can appear before torch is imported. In a notebook, the bar is an output that is replaced in place.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO, TypeAlias, final

from flodl import log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions
    from rich.live import Live
    from rich.segment import Segment

Style: TypeAlias = Literal["bar", "lines", "none"]

PATIENCE = 2.0
"""Seconds of silence after which a terminal that cannot erase a line gets a plain one."""

_RANK_VARIABLES = (
    "RANK",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "JOB_COMPLETION_INDEX",
)
_BAR_MIN, _BAR_MAX = 4, 24
_GAP = "  "
_PAGE = '<pre style="margin:0">{code}</pre>'


def is_first_rank() -> bool:
    """Whether this process is alone, or rank 0 of those that a launcher started."""
    return all(os.environ.get(name, "0") in ("", "0") for name in _RANK_VARIABLES)


def style_of(stream: TextIO | None) -> Style:
    """Choose how progress is shown on a stream; ``none`` for quiet programs and ranks above 0."""
    if stream is None or not log.enabled(log.Verbosity.NORMAL) or not is_first_rank():
        return "none"
    if _is_notebook(stream):
        return "bar"
    return "bar" if _is_terminal(stream) and _can_erase() else "lines"


@contextlib.contextmanager
def importing(name: str) -> Iterator[None]:
    """Show ``importing NAME`` on stderr while a slow module is imported in this context.

    Only on a terminal, and only in the process that the user started: ranks above 0 and worker
    processes are silent.
    """
    if name in sys.modules or not _shows_imports():
        yield
        return
    erasable = _can_erase() and (os.name == "posix" or "WT_SESSION" in os.environ)
    line = _ErasedLine(sys.stderr) if erasable else _LateLine(sys.stderr)
    line.tell(f"importing {name}")
    try:
        yield
    finally:
        line.stop()


def _shows_imports() -> bool:
    """Whether a person looks at this process alone."""
    quiet = log.level_of(os.environ) < log.Verbosity.NORMAL
    terminal = _is_terminal(sys.stdout) and _is_terminal(sys.stderr)
    return terminal and not quiet and not _is_worker() and is_first_rank()


def status(text: str) -> None:
    """Show what the training does until its next step; nothing if no display is open."""
    if _open is not None:
        _open.tell(text)


class Display(Protocol):
    """Shows what a training does now."""

    def tell(self, text: str) -> None:
        """Show a status."""

    def show(self, line: BarLine) -> None:
        """Show how far the epoch is, instead of a status."""

    def stop(self) -> None:
        """Remove what is shown and give the terminal back."""


_open: Display | None = None
_opening = threading.Lock()


def open_display(stream: TextIO | None, style: Style) -> Display | None:
    """Start to show a training on a terminal, until :func:`close_display`.

    Returns:
        The display; None if the stream is neither a terminal nor a notebook, if nothing shall be
        shown, or if another training of this process is shown there.
    """
    global _open
    with _opening:
        if _open is not None or style == "none" or stream is None:
            return None
        if _is_terminal(stream):
            _open = LiveLine(stream) if style == "bar" else _LateLine(stream)
        elif style == "bar":
            _open = _NotebookLine()
        return _open


def close_display(display: Display | None) -> None:
    """Remove what a display shows; it may be called again."""
    global _open
    with _opening:
        if display is not None and display is _open:
            _open = None
            display.stop()


def aligned(rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,)) -> list[str]:
    """Return a line for each row of a table; cells end at the same column, except in `left`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(_GAP.join(cells).rstrip())
    return lines


@dataclass(frozen=True, slots=True)
class BarLine:
    """The line of an epoch, shortened to the width of a terminal by whole fields."""

    head: str
    """The epoch."""
    steps: str
    """The steps done, and of how many."""
    share: float | None
    """How much of the epoch is done, from 0 to 1; None if its length is unknown."""
    values: Sequence[str] = ()
    """Metrics, the most important first."""
    rate: str = ""
    """The speed."""
    eta: str = ""
    """The remaining time."""
    note: str = ""
    """What the training does instead of steps; replaces metrics, speed and time."""

    def fitted(self, width: int) -> tuple[int, list[tuple[str, str]]]:
        """Return the columns of the bar, and the fields that fit with their styles.

        The remaining time is dropped last: before it all metrics, the speed, and the bar.
        """
        from rich.cells import cell_len

        room = width - cell_len(self.head) - len(_GAP) - cell_len(self.steps)
        last = self.note or self.eta
        fields = [(last, "")] if last and cell_len(last) + len(_GAP) <= room else []
        room -= sum(cell_len(text) + len(_GAP) for text, _ in fields)
        bar = 0
        if self.share is not None and room >= _BAR_MIN + len(_GAP):
            bar, room = _BAR_MIN, room - _BAR_MIN - len(_GAP)
        if not self.note:
            # The loss, the speed, then the other metrics.
            wanted = [*((text, "") for text in self.values[:1]), (self.rate, "dim")]
            wanted += [(text, "") for text in self.values[1:]]
            kept = set()
            for text, style in wanted:
                if text and cell_len(text) + len(_GAP) > room:
                    break
                if text:
                    kept.add((text, style))
                    room -= cell_len(text) + len(_GAP)
            shown = [(text, "") for text in self.values] + [(self.rate, "dim")]
            fields = [field for field in shown if field in kept] + fields
        if bar:
            bar = min(_BAR_MAX, bar + room)
        return bar, fields

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Render the line; rich calls this."""
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        # A full last column makes some terminals begin a new row.
        width = options.max_width - 1
        bar, fields = self.fitted(width)
        before, after = Text(self.head), Text(self.steps)
        if bar:
            before.append(_GAP)
            after = Text(_GAP) + after
        else:
            before.append(_GAP).append_text(after)
            after = Text()
        for text, style in fields:
            after.append(_GAP).append(text, style)
        if not bar:
            before.append_text(after)
            before.truncate(max(0, width))
            yield from before.render(console)
            return
        yield from before.render(console)
        drawn = ProgressBar(total=1.0, completed=self.share or 0.0, width=bar)
        yield from drawn.__rich_console__(console, options)  # type: ignore[misc]
        yield from after.render(console)


@final
class LiveLine:
    """The last line of a terminal, drawn by rich; what others print appears above it.

    stdout and stderr are redirected while it is shown, also for the handlers of ``logging`` that
    write to them. The cursor stays visible: a program that is killed leaves a usable terminal.

    Args:
        stream: A terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live: Live | None = None
        self._broken = False
        self._line: BarLine | None = None
        self._own = self._proxies = sys.stdout, sys.stderr
        self._handlers: list[tuple[logging.StreamHandler[Any], Any]] = []

    def tell(self, text: str) -> None:
        """Show a status, on the line of the epoch if there is one."""
        from rich.text import Text

        if self._line is None:
            self._draw(Text(text, no_wrap=True, overflow="ellipsis"))
        else:
            self._draw(replace(self._line, note=text))

    def show(self, line: BarLine) -> None:
        """Draw the line of the epoch."""
        self._line = line
        self._draw(line)

    def stop(self) -> None:
        """Erase the line and end the redirection."""
        live, self._live = self._live, None
        if live is None:
            return
        with contextlib.suppress(OSError, ValueError):
            live.stop()
        # rich gives the streams back, unless the terminal is gone.
        for name, own, proxy in zip(("stdout", "stderr"), self._own, self._proxies, strict=True):
            if getattr(sys, name) is proxy:
                setattr(sys, name, own)
        for handler, stream in self._handlers:
            handler.stream = stream
        self._handlers.clear()

    def _draw(self, content: Any) -> None:
        if self._broken:
            return
        try:
            if self._live is None:
                self._start(content)
            else:
                self._live.update(content, refresh=True)
        except (OSError, ValueError):  # the terminal is gone, training continues
            self._broken = True
            self.stop()

    def _start(self, content: Any) -> None:
        from rich.live import Live

        self._own = sys.stdout, sys.stderr
        self._live = Live(
            content,
            console=_console(self._stream),
            # A thread of rich's own would compete with the training.
            auto_refresh=False,
            transient=True,
            redirect_stderr=_is_terminal(sys.stderr),
        )
        self._live.start(refresh=True)
        self._proxies = sys.stdout, sys.stderr
        for before, after in zip(self._own, self._proxies, strict=True):
            if before is not after:
                self._redirect_logging(before, after)

    def _redirect_logging(self, before: TextIO, after: TextIO) -> None:
        """Let the handlers that write to a stream write above the line."""
        known = (one for one in logging.root.manager.loggerDict.values())
        loggers = [logging.root, *(one for one in known if isinstance(one, logging.Logger))]
        for logger in loggers:
            for handler in logger.handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                    self._handlers.append((handler, before))
                    handler.stream = after


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    class SteadyConsole(Console):
        """A console that never hides the cursor, which a killed program could not show again."""

        def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002 - rich's signature
            return False

    # Soft wrapping passes on long lines of the program as they are.
    return SteadyConsole(file=stream, force_terminal=True, highlight=False, soft_wrap=True)


@final
class _NotebookLine:
    """An output below the cell of a notebook, replaced in place; empty at the end.

    What others print appears below it.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._line: BarLine | None = None

    def tell(self, text: str) -> None:
        """Show a status, on the line of the epoch if there is one."""
        self._draw(text if self._line is None else replace(self._line, note=text))

    def show(self, line: BarLine) -> None:
        """Draw the line of the epoch."""
        self._line = line
        self._draw(line)

    def stop(self) -> None:
        """Leave no line: a notebook that is saved has the lines of the epochs."""
        if self._handle is not None:
            self._handle.update({"text/plain": "", "text/html": ""}, raw=True)

    def _draw(self, content: Any) -> None:
        from IPython.display import DisplayHandle
        from rich.console import Console

        console = Console(file=io.StringIO(), record=True, width=100, force_jupyter=False)
        console.print(content, end="", highlight=False, markup=False)
        page = console.export_html(code_format=_PAGE, inline_styles=True, clear=False)
        bundle = {"text/plain": console.export_text(), "text/html": page}
        if self._handle is None:
            self._handle = DisplayHandle()  # type: ignore[no-untyped-call]
            self._handle.display(bundle, raw=True)
        else:
            self._handle.update(bundle, raw=True)


@final
class _ErasedLine:
    """A status on a terminal, without rich."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def tell(self, text: str) -> None:
        # The cursor waits at the beginning: what others print replaces the status.
        _write(self._stream, f"\r\x1b[K{text}\r")

    def stop(self) -> None:
        _write(self._stream, "\r\x1b[K")


@final
class _LateLine:
    """A status on a terminal that cannot erase: a plain line if it lasts for two seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._timer: threading.Timer | None = None

    def tell(self, text: str) -> None:
        self.stop()
        if not text:
            return
        self._timer = threading.Timer(PATIENCE, _write, [self._stream, f"{text}\n"])
        self._timer.daemon = True
        self._timer.start()

    def show(self, line: BarLine) -> None:
        self.tell(line.note)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _write(stream: TextIO, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _is_notebook(stream: TextIO | None) -> bool:
    """Whether a stream is the output of a cell that a person looks at.

    A program that executes a whole notebook cannot answer ``input()``, and says so. It gets lines:
    they stay in the file.
    """
    if type(stream).__module__.partition(".")[0] != "ipykernel":
        return False
    shell = sys.modules["IPython"].get_ipython()
    request = shell.get_parent() if hasattr(shell, "get_parent") else {}
    return bool(request.get("content", {}).get("allow_stdin"))


def _can_erase() -> bool:
    # fdl --no-ansi says "never": no escape sequences at all.
    plain = os.environ.get("FLODL_COLOR") == "never"
    return not plain and os.environ.get("TERM") not in ("dumb", "unknown")


def _is_worker() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None
