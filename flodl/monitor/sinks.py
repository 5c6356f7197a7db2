"""Receivers of a run's records: the sink interface, and the sinks that write text."""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, final, runtime_checkable

from fdl.base.files import append_text, replace_text
from fdl.base.units import (
    counted,
    format_bytes,
    format_duration,
    format_eta,
    format_metric,
    printable,
)
from flodl import log
from flodl.errors import FlodlError
from flodl.monitor.records import EpochRecord, Finish, RunInfo
from flodl.monitor.resources import ResourceSample


@runtime_checkable
class Sink(Protocol):
    """A receiver of a run's records.

    A monitor calls the methods of a sink one after the other, from a thread for that sink only. An
    exception detaches the sink; training continues. A late sink first gets what it has missed.
    A sink that has further methods also receives:

    =====================  ======================================================================
    ``steps(series)``      pieces of the curves by step, as a sequence of ``StepSeries``
    ``media(record)``      an image, histogram, text, table or curve
    ``ledger(seconds)``    the seconds by account since the start of the run
    ``progress(progress)`` the position of the training, about once a second
    ``flush()``            a request to make everything so far visible to readers, at most once in
                           ``flush_seconds``, an attribute
    =====================  ======================================================================
    """

    def open(self, info: RunInfo) -> None:  # noqa: ARG002 - a sink may leave it out
        """Receive the facts of the run: before the first record, and again after every change."""
        return

    def record(self, record: EpochRecord) -> None:  # noqa: ARG002 - a sink may leave it out
        """Receive one epoch."""
        return

    def finish(self, summary: Finish) -> None:  # noqa: ARG002 - a sink may leave it out
        """Receive the end of the run; nothing follows."""
        return


@final
class TerminalSink(Sink):
    """One line per epoch and one at the end, through :func:`flodl.log.msg` at NORMAL.

    On a terminal an epoch takes one row: what does not fit is left out, the last metrics first, and
    the row says how many. In a pipe the line is complete.
    """

    def record(self, record: EpochRecord) -> None:
        """Print the epoch's line."""
        log.msg(lambda: "  " + epoch_line(record, _room()))

    def finish(self, summary: Finish) -> None:
        """Print the end of the run with its last metrics."""
        log.msg(lambda: "  " + finish_line(summary, _room()))
        if summary.use:
            told = [f"use the best model: {summary.use}", "see docs/guide/trained-model.md"]
            log.msg(lambda: "  " + _joined(told, _room()))


def require(package: str, sink: object, install: str) -> None:
    """Raise an error that says what to install if a package is missing.

    Raises:
        FlodlError: The package is not installed.
    """
    if find_spec(package) is None:
        raise FlodlError(
            f"{type(sink).__name__} needs the package {package}, which is not installed; "
            f"pip install {install}"
        )


class TextFileSink:
    """A sink that keeps lines and appends them to a file at each flush.

    Args:
        path: File to write; missing folders are created.
    """

    flush_seconds = 0.0

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._opened = False
        self._pending: list[str] = []

    def __str__(self) -> str:
        return str(self._path)

    def open(self, info: RunInfo) -> None:  # noqa: ARG002 - only some files contain the facts
        """Begin the file at the first call."""
        if not self._opened:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._begin()
            self._opened = True

    def _begin(self) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Append the kept lines."""
        if self._pending:
            append_text(self._path, "".join(line + "\n" for line in self._pending))
            self._pending.clear()


@final
class LogSink(TextFileSink):
    """The terminal's lines in a file, under the heading ``# flodl training log``.

    Args:
        path: File to write; an existing one is replaced, missing folders are created.
    """

    def _begin(self) -> None:
        replace_text(self._path, "# flodl training log\n")

    def record(self, record: EpochRecord) -> None:
        """Keep the epoch's line for the next flush."""
        self._pending.append(epoch_line(record))

    def finish(self, summary: Finish) -> None:
        """Append the closing line."""
        self._pending.append(finish_line(summary))
        self.flush()


@final
class CsvSink(TextFileSink):
    """One row per epoch; the columns are the union over all epochs.

    ``epoch`` counts from 1. ``duration_s`` is in seconds, memory in bytes, percentages are of all
    cores or of the mean GPU. With several ranks, ``anchor``, ``comm_ms`` and ``wait_ms`` follow,
    and for each rank its batches, samples and ``busy_ms``. ``lr`` is the learning rate after the
    last step, unless a metric has that name. A cell without a value is empty; nan and
    inf are written as such. Rows are appended. Only when a new column appears, the whole file is
    written again.

    Args:
        path: File to write; an existing one is replaced, missing folders are created.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._columns: dict[str, None] = {}  # in order of appearance
        self._ranks = 0
        self._records: list[EpochRecord] = []
        self._heading: list[str] = []
        self._written = 0

    def _begin(self) -> None:
        self.flush()

    def record(self, record: EpochRecord) -> None:
        """Keep the epoch for the next flush."""
        self._columns.update(dict.fromkeys(name for name, _ in _values(record)))
        if record.ranks is not None:
            self._ranks = max(self._ranks, len(record.ranks.per_rank))
        self._records.append(record)

    def flush(self) -> None:
        """Append the kept rows, or write the file again if its columns have changed."""
        names = list(self._columns)
        heading = ["epoch", "duration_s", *names, *_RESOURCE_COLUMNS, *_rank_columns(self._ranks)]
        is_new = heading != self._heading
        records = self._records if is_new else self._records[self._written :]
        rows = [_row(record, names, self._ranks) for record in records]
        if is_new:
            replace_text(self._path, _csv([heading, *rows]))
        elif rows:
            append_text(self._path, _csv(rows))
        self._heading, self._written = heading, len(self._records)

    def finish(self, summary: Finish) -> None:  # noqa: ARG002 - only measurements are written
        """Write the remaining rows."""
        self.flush()


def epoch_line(record: EpochRecord, room: int | None = None) -> str:
    """Return ``epoch   7/100  loss=0.0023  [24ms  ETA 1.2s]``, in ``room`` characters if given.

    With several ranks, their shares, anchor and waiting time come before the times. The memory of
    the first GPU comes last. Where the row is short, the last metrics are left out, then the
    memory, the ranks and the remaining time.
    """
    total = str(record.total)
    head = f"epoch {record.epoch + 1:>{len(total)}}/{total}"
    took = format_duration(record.seconds)
    times = f"[{took}  ETA {format_eta(record.eta)}]" if record.eta is not None else f"[{took}]"
    ranks = [record.ranks.text(record.seconds)] if record.ranks is not None else []
    memory = _vram(record.resources)
    values = [f"{printable(name)}={format_metric(value)}" for name, value in record.metrics]
    line = "  ".join([head, *values, *ranks, times, *memory])
    if room is None or len(line) <= room:
        return line
    for end in ([*ranks, times, *memory], [*ranks, times], [times], [f"[{took}]"]):
        around = len("  ".join([head, *end]))
        line = "  ".join([head, *_fitting(values, room - around), *end])
        if len(line) <= room:
            return line
    return f"{line[: room - 1]}…"


def finish_line(summary: Finish, room: int | None = None) -> str:
    """Return ``10 epochs in 1m 12s, best accuracy 0.9920 (epoch 8), runs/2026-01-31T10-00-00``.

    Without a best epoch it shows the metrics of the last one. A run that is not complete begins
    with its status.
    """
    line = f"{counted(summary.epochs, 'epoch')} in {format_eta(summary.seconds)}"
    if summary.status != "complete":
        line = f"{summary.status} after {line}"
    best = summary.best
    if best is not None:
        value = format_metric(best.value)
        values = [f"best {printable(best.metric)} {value} (epoch {best.epoch + 1})"]
    else:
        values = [f"{printable(name)} {format_metric(value)}" for name, value in summary.metrics]
    if room is not None and values:
        values = _fitting(values, room - len(line) - 1)
    told = ", ".join([line, *values])
    return _joined([told, summary.folder], room) if summary.folder else told


def _joined(parts: list[str], room: int | None) -> str:
    """Two parts of a line with a comma between; the second in a row of its own if it must be."""
    line = ", ".join(parts)
    return line if room is None or len(line) <= room else ",\n  ".join(parts)


def _fitting(values: list[str], room: int) -> list[str]:
    """Return the values that fit, at least one, and how many are left out."""
    lengths = [len(value) + 2 for value in values]
    if sum(lengths) <= room:
        return values
    room -= len(f"  +{len(values)} more")
    kept = 1
    while kept < len(values) and sum(lengths[: kept + 1]) <= room:
        kept += 1
    return [*values[:kept], f"+{len(values) - kept} more"] if kept < len(values) else values


def _room() -> int | None:
    """Return the characters in a row of the terminal on stdout; None without a terminal."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns - _INDENTATION


def _vram(resources: ResourceSample) -> list[str]:
    """Return ``VRAM: 2.1/6.0 GB (82%)`` for the first GPU; nothing without a GPU."""
    if not resources.gpus:
        return []
    first, util = resources.gpus[0], resources.gpu_util
    text = f"VRAM: {first.reserved / 1024**3:.1f}/{first.total / 1024**3:.1f} GB"
    if util is not None:
        text += f" ({util:.0f}%)"
    if resources.vram_spill:
        text += f" spill {format_bytes(resources.vram_spill)}"
    return [text]


_INDENTATION = 2
_RESOURCE_COLUMNS = ("cpu_pct", "ram_used", "gpu_pct", "vram_alloc", "vram_spill")
_RANK_PARTS = ("batches", "samples", "busy_ms")
_RATE = "lr"


def _rank_columns(ranks: int) -> list[str]:
    each = [f"rank{rank}_{what}" for rank in range(ranks) for what in _RANK_PARTS]
    return ["anchor", "comm_ms", "wait_ms", *each] if ranks else []


def _rank_cells(record: EpochRecord, ranks: int) -> list[str]:
    summary = record.ranks
    if summary is None:
        return [""] * len(_rank_columns(ranks))
    cells = [_cell(summary.anchor, "d"), f"{summary.comm_ms:.3f}", f"{summary.wait_ms:.3f}"]
    for one in summary.per_rank:
        cells += [str(one.batches), str(one.samples), f"{one.busy_ms:.3f}"]
    return cells + [""] * (len(_RANK_PARTS) * (ranks - len(summary.per_rank)))


def _row(record: EpochRecord, names: list[str], ranks: int) -> list[str]:
    metrics, load = dict(_values(record)), record.resources
    first = load.gpus[0] if load.gpus else None
    return [
        str(record.epoch + 1),
        f"{record.seconds:.3f}",
        *(_number(name, metrics[name]) if name in metrics else "" for name in names),
        _cell(load.cpu, ".1f"),
        _cell(load.ram_used, "d"),
        _cell(load.gpu_util, ".1f"),
        _cell(first.reserved if first else None, "d"),
        _cell(load.vram_spill, "d"),
        *_rank_cells(record, ranks),
    ]


def _values(record: EpochRecord) -> list[tuple[str, float]]:
    """Return the metrics of an epoch and its learning rate, unless a metric has that name."""
    values = list(record.metrics)
    if record.lr is not None and all(name != _RATE for name, _ in values):
        values.append((_RATE, record.lr))
    return values


def _number(name: str, value: float) -> str:
    # Learning rates can be far below the last digit of a metric.
    return repr(value) if name == _RATE else f"{value:.8f}"


def _cell(value: float | None, pattern: str) -> str:
    return "" if value is None else format(value, pattern)


def _csv(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
