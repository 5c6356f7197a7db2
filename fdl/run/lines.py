"""The lines of a program's output: without secrets in the log, and searched for metrics."""

# The paths of a Plan are strings.
# ruff: noqa: PTH118, PTH123
from __future__ import annotations

import json
import math
import os
import re
import time
from contextlib import suppress

from fdl.base.masking import KNOWN
from fdl.base.run_record import METRIC_LINES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# A program that never ends its line must not fill the memory.
LONGEST = 1 << 20
_PAUSE_S = 0.01


class Lines:
    """Takes one stream of a program.

    Args:
        log: The descriptor of the log.
        metrics: What looks for metrics, or None.
    """

    def __init__(self, log: int, metrics: Metrics | None) -> None:
        self._log = log
        self._metrics = metrics
        self._mask = KNOWN.stream()
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take what the program has written."""
        self._take(self._mask.feed(data))

    def end(self) -> None:
        """Take the last line."""
        self._take(self._mask.rest())
        if self._rest:
            self._put([self._rest])
            self._rest = b""

    def _take(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n")
        if len(self._rest) > LONGEST:
            whole.append(self._rest)
            self._rest = b""
        if whole:
            self._put(whole)

    def _put(self, lines: list[bytes]) -> None:
        shown = [plain(line) for line in lines]
        if self._log >= 0:
            try:
                write_all(self._log, b"".join(line + b"\n" for line in shown))
            except OSError:
                self._log = -1  # the disk is full; the program goes on
        if self._metrics is not None:
            self._metrics.read([line.decode("utf-8", "replace") for line in shown])


class Metrics:
    """Writes the metrics that a program prints into ``metrics.jsonl``.

    A line that matches the pattern of a metric has a value of it. Its step is the last number that
    the pattern of the step has found, in this line or before.

    Args:
        folder: The run directory.
        patterns: Metric -> the patterns of its value and of its step.
    """

    def __init__(self, folder: str, patterns: Mapping[str, tuple[str, str]]) -> None:
        import warnings

        self._file = os.path.join(folder, METRIC_LINES)
        with warnings.catch_warnings():
            # As for the check of the manifest: only an error counts.
            warnings.simplefilter("ignore", FutureWarning)
            self._patterns = {
                name: (re.compile(value), re.compile(step) if step else None)
                for name, (value, step) in patterns.items()
            }
        self._steps: dict[str, int] = {}

    def read(self, lines: Sequence[str]) -> None:
        """Take the metrics of some lines."""
        text = "".join(map(self._found, lines))
        if not text:
            return
        # A full disk costs the metrics, not the program.
        with suppress(OSError), open(self._file, "a", encoding="utf-8") as file:
            file.write(text)

    def _found(self, line: str) -> str:
        """The metrics of a line, as lines of JSON."""
        rows: dict[int, dict[str, float]] = {}
        for name, (value, step) in self._patterns.items():
            at = None if step is None else _number(step, line)
            if at is not None and math.isfinite(at):
                self._steps[name] = int(at)
            found = _number(value, line)
            if found is None:
                continue
            if step is None:
                self._steps[name] = self._steps.get(name, 0) + 1
            if name in self._steps:
                rows.setdefault(self._steps[name], {})[name] = found
        return "".join(json.dumps({"step": at, **row}) + "\n" for at, row in rows.items())


def last_state(line: bytes) -> bytes:
    """What a terminal shows of a line that was written over."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def plain(line: bytes) -> bytes:
    """What a terminal shows of a line: without colours, and the last state of a progress bar."""
    line = last_state(line)
    if b"\x1b" not in line:
        return line
    return re.sub(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])", b"", line)


def _number(pattern: re.Pattern[str], line: str) -> float | None:
    """The number that a pattern finds in a line: in its first group, if it has one."""
    match = pattern.search(line)
    if match is None:
        return None
    try:
        return float(match[1] if pattern.groups else match[0])
    except (TypeError, ValueError):
        return None


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, also to a stream that another program has switched to not waiting."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            time.sleep(_PAUSE_S)
