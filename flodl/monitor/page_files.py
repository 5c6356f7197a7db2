"""The files from which the live page of a run is served, beside its step curves and media."""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from fdl.base.files import replace_text
from flodl.monitor.jsonl import JsonlSink
from flodl.monitor.records import EpochRecord, Finish, RunInfo, finite, to_json
from flodl.monitor.step_progress import StepProgress

_LOADS = 60


@final
class PageFilesSink:
    """Writes the records of a run, and what is true of it now, into a folder.

    ``records.jsonl`` has the facts of the run, its epochs and its end; it only grows.
    ``now.json`` has the position, the ledger and the newest loads; it is replaced. ``graph.svg``
    is the drawing of the model. A page that is open knows by ``session`` that another training has
    begun to write.

    Args:
        folder: Folder to write, made if missing.
    """

    flush_seconds = 0.5

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._records = JsonlSink(self._folder / "records.jsonl")
        self._drawing = ""
        self._loads: deque[dict[str, Any]] = deque(maxlen=_LOADS)
        self._now: dict[str, Any] = {"session": secrets.token_hex(8), "drawing": 0}

    def __str__(self) -> str:
        return str(self._folder)

    def open(self, info: RunInfo) -> None:
        """Keep the facts; write a drawing that has changed."""
        self._records.open(info)
        if info.svg != self._drawing:
            self._drawing = info.svg
            # A page fetches the drawing to show it, because it can be large.
            replace_text(self._folder / "graph.svg", info.svg)
            self._now["drawing"] = self._now["drawing"] + 1 if info.svg else 0

    def record(self, record: EpochRecord) -> None:
        """Keep one epoch for the next flush."""
        self._records.record(record)

    def progress(self, progress: StepProgress) -> None:
        """Set the position of the training, and keep the load of the machine."""
        self._now["progress"] = progress.as_json()
        self._loads.append({"at": round(progress.elapsed, 1), **progress.resources.as_json()})

    def ledger(self, seconds: Mapping[str, float]) -> None:
        """Set the seconds by account."""
        self._now["ledger"] = {name: finite(taken) for name, taken in seconds.items()}

    def flush(self) -> None:
        """Append the kept records, and replace what is true now."""
        self._records.flush()
        now = to_json({**self._now, "loads": list(self._loads)})
        replace_text(self._folder / "now.json", now)

    def finish(self, summary: Finish) -> None:
        """Write the end of the run."""
        self.flush()
        self._records.finish(summary)
