"""How far a long job is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fdl.base import output

if TYPE_CHECKING:
    from rich.progress import Progress as Bar, ProgressColumn

_REDRAW = 0.1
"""Seconds between two drawings of a bar."""

_LINE = 10.0
"""Seconds between two lines where there is no terminal."""

_ROOM_FOR_AMOUNT = 70
"""Columns from which a terminal also shows the amount, the rate and the bar itself."""


class Progress:
    """Reports one job on stderr; use it as a context manager.

    Calls may come from several threads as long as each value passed is the new total. ``-q``
    mutes it.

    Args:
        label: What is being done: ``libtorch 2.10.0 cu128``.
        total: How much there is to do; 0 when unknown.
        unit: ``bytes``, shown as MB with a rate, or a noun such as ``steps``, shown as a count.
    """

    def __init__(self, label: str, total: int = 0, unit: str = "bytes") -> None:
        self.label = label
        self.total = total
        self.unit = unit
        self._bar: Bar | None = None
        self._done = 0
        self._offset = 0
        self._began = self._reported = time.monotonic()

    def __enter__(self) -> Self:
        if output.is_screen(sys.stderr) and not output.is_quiet():
            self._bar = _bar(self.unit)
            self._bar.add_task(self.label, total=self.total or None)
            self._bar.start()
            # A job that is killed cannot show a hidden cursor again.
            self._bar.console.show_cursor()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._draw(self._bar)
            self._bar.stop()
        elif kind is None:
            output.note(self.text())

    def start(self, total: int, done: int = 0) -> None:
        """Say how much there is, and how much of it an earlier call had done already."""
        self.total = total
        self._done = self._offset = done
        self._began = time.monotonic()
        if self._bar is not None:
            self._bar.reset(self._bar.task_ids[0], total=total or None, completed=done)

    def update(self, done: int) -> None:
        """Say how much is done in all."""
        self._done = done
        now = time.monotonic()
        if now - self._reported < (_REDRAW if self._bar else _LINE):
            return
        self._reported = now
        if self._bar is not None:
            self._draw(self._bar)
        else:
            output.note(self.text())

    def text(self) -> str:
        """One line: label, amount, share and, for bytes, the rate and the time left."""
        share = f" {100 * self._done // self.total}%" if self.total else ""
        if self.unit != "bytes":
            amount = f"{self._done}/{self.total}" if self.total else str(self._done)
            return f"{self.label}: {amount} {self.unit}{share}"
        of = f" of {self.total / 1e6:.1f}" if self.total else ""
        return f"{self.label}: {self._done / 1e6:.1f}{of} MB{share}{self._pace()}"

    def _pace(self) -> str:
        seconds = time.monotonic() - self._began
        rate = (self._done - self._offset) / seconds if seconds > 0 else 0.0
        if rate <= 0:
            return ""
        left = int((self.total - self._done) / rate) if self.total else 0
        return f", {rate / 1e6:.1f} MB/s" + (f", {timedelta(seconds=left)} left" if left else "")

    def _draw(self, bar: Bar) -> None:
        bar.update(bar.task_ids[0], completed=self._done, refresh=True)


def _bar(unit: str) -> Bar:
    """A bar with what the terminal has room for; no thread draws it."""
    import rich.progress as pieces
    from rich.table import Column

    console = output.console(stderr=True)
    whole, has_room = Column(no_wrap=True), console.width >= _ROOM_FOR_AMOUNT
    label = Column(no_wrap=True, max_width=console.width - (42 if has_room else 12))
    shown: list[ProgressColumn] = [
        pieces.TextColumn("{task.description}", markup=False, table_column=label)
    ]
    if has_room:
        # Where a long label leaves less room, the bar alone becomes shorter.
        shown.append(pieces.BarColumn(bar_width=20))
    shown.append(pieces.TaskProgressColumn())
    if has_room and unit == "bytes":
        shown += [pieces.DownloadColumn(table_column=whole), pieces.TransferSpeedColumn(whole)]
    elif has_room:
        shown += [pieces.MofNCompleteColumn(table_column=whole), pieces.TextColumn(unit)]
    shown.append(pieces.TimeRemainingColumn(compact=True, table_column=whole))
    # Standard output may be a script for the shell, so it is not redirected to the bar.
    return pieces.Progress(*shown, console=console, auto_refresh=False, redirect_stdout=False)
