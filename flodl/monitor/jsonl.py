"""The records of a run as a file of JSON lines, for scripts that follow or evaluate it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, final

from fdl.base.files import replace_text
from flodl.monitor.records import EpochRecord, Finish, RunInfo, StepSeries, finite, to_json
from flodl.monitor.sinks import TextFileSink

_EPOCH = "epoch"


@final
class JsonlSink(TextFileSink):
    """One JSON object per line, in the order of the run.

    =============  ===============================================================================
    ``"type"``     the rest of the object
    =============  ===============================================================================
    ``"run"``      facts of the run, without its drawing; again after every change
    ``"epoch"``    one epoch, counted from 1: metrics, times in seconds, resources
    ``"steps"``    a piece of a curve: ``name``, ``steps`` counted from 0, ``values``
    ``"ledger"``   ``seconds`` by account, once, before the end
    ``"finish"``   the end of the run
    =============  ===============================================================================

    Metrics that are nan or infinite are text, other such numbers null. An existing file is
    continued: a line cut off by a crash is removed, and an epoch that is already in the file is not
    written again. An epoch trained again after a resume has two lines; the later one counts.

    Args:
        path: File to write; missing folders are created.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._known: set[str] = set()
        self._run = ""
        self._ledger: Mapping[str, float] = {}

    def open(self, info: RunInfo) -> None:
        """Begin or continue the file; keep the facts for the next flush."""
        super().open(info)
        form = info.as_json()
        form.pop("svg", None)
        line = _line("run", form)
        if line != self._run:
            self._run = line
            self._pending.append(line)

    def record(self, record: EpochRecord) -> None:
        """Keep one epoch for the next flush."""
        line = _line(_EPOCH, record.as_json())
        if line not in self._known:
            self._pending.append(line)

    def steps(self, series: Sequence[StepSeries]) -> None:
        """Keep pieces of curves for the next flush."""
        self._pending += [_line("steps", piece.as_json()) for piece in series]

    def ledger(self, seconds: Mapping[str, float]) -> None:
        """Keep the seconds by account; only the last ones are written."""
        self._ledger = seconds

    def finish(self, summary: Finish) -> None:
        """Append the rest and the end of the run."""
        if self._ledger:
            seconds = {name: finite(value) for name, value in self._ledger.items()}
            self._pending.append(_line("ledger", {"seconds": seconds}))
        self._pending.append(_line("finish", summary.as_json()))
        self.flush()

    def _begin(self) -> None:
        if not self._path.exists():
            replace_text(self._path, "")
            return
        whole = 0
        with self._path.open("r+b") as file:
            for data in file:
                if not data.endswith(b"\n"):
                    file.truncate(whole)
                    break
                whole += len(data)
                line = data.decode("utf-8", "replace").rstrip("\n")
                if _type(line) == _EPOCH:
                    self._known.add(line)


def _line(kind: str, form: Mapping[str, Any]) -> str:
    return to_json({"type": kind, **form})


def _type(line: str) -> str | None:
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content.get("type") if isinstance(content, dict) else None
