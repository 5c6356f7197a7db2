"""The report of a run: one HTML file that needs only a browser."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import final

from fdl.base import page_assets
from fdl.base.files import replace_text
from flodl.monitor.media.records import MediaRecord
from flodl.monitor.media.store import BUDGET, KEPT, MediaStore, embedded
from flodl.monitor.records import (
    EpochRecord,
    Finish,
    RunInfo,
    StepProgress,
    StepSeries,
    finite,
    to_json,
)
from flodl.monitor.series import SeriesStore

POINTS_IN_FILE = 2000
"""Points per step curve in a page saved as a file."""

_POINTS_IN_ALL = 100_000


@final
class HtmlSink:
    """Keeps a report page up to date while training runs, and completes it at the end.

    Args:
        path: File to write; an existing one is replaced, missing folders are created.
        refresh_seconds: Shortest time between two versions of the page during training.
        media_kept: Most media records of one name.
        media_bytes: Most bytes of media in the page. It says how many records it leaves out.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        refresh_seconds: float = 10.0,
        media_kept: int = KEPT,
        media_bytes: int = BUDGET,
    ) -> None:
        self.flush_seconds = refresh_seconds
        self._path = Path(path)
        self._info: RunInfo | None = None
        # Each record is encoded once; each version of the page joins the results.
        self._records: list[str] = []
        self._curves = SeriesStore(4 * POINTS_IN_FILE)
        self._media = MediaStore(media_kept)
        self._media_bytes = media_bytes
        self._ledger: Mapping[str, float] = {}
        self._progress: StepProgress | None = None
        self._finish: Finish | None = None

    def __str__(self) -> str:
        return str(self._path)

    def open(self, info: RunInfo) -> None:
        """Set the facts shown around the curves."""
        if self._info is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        self._info = info

    def record(self, record: EpochRecord) -> None:
        """Add one epoch to the next version of the page."""
        self._records.append(to_json(record.as_json()))

    def steps(self, series: Sequence[StepSeries]) -> None:
        """Add pieces of curves to the next version of the page."""
        self._curves.extend(series)

    def media(self, record: MediaRecord) -> None:
        """Add an image, histogram, text, table or curve to the next version of the page."""
        self._media.add(record)

    def ledger(self, seconds: Mapping[str, float]) -> None:
        """Set the seconds by account."""
        self._ledger = seconds

    def progress(self, progress: StepProgress) -> None:
        """Set the position of the training."""
        self._progress = progress

    def flush(self) -> None:
        """Write the page."""
        if self._info is None:
            return
        points = min(POINTS_IN_FILE, _POINTS_IN_ALL // max(1, len(self._curves.names())))
        steps, seconds = self._curves.clock()
        parts = {
            "series": [one.as_json() for one in self._curves.snapshot(points)],
            "clock": {"steps": steps, "seconds": seconds},
            "progress": self._progress.as_json() if self._progress else None,
            "ledger": {name: finite(taken) for name, taken in self._ledger.items()},
            "written": datetime.now().astimezone().isoformat(timespec="seconds"),
        }
        page = page_assets.run_page(
            self._info.as_json(),
            self._records,
            parts,
            finish=to_json(self._finish.as_json() if self._finish else None),
            media=embedded(self._media, self._media_bytes),
        )
        replace_text(self._path, page)

    def finish(self, summary: Finish) -> None:
        """Write the final page."""
        self._finish = summary
        self.flush()

    def amend(self, ledger: Mapping[str, float]) -> None:
        """Write the final page again with the whole time ledger, if the file still exists.

        Raises:
            OSError: The file cannot be written.
        """
        if self._finish is not None and self._path.exists():
            self._ledger, self._finish = ledger, replace(self._finish, ledger=ledger)
            self.flush()
