"""All runs of a page, what is known of each, and which of them changed."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from fdl.run_directory.find import search
from fdl.run_directory.run import RUNNING
from fdl.run_directory.step_files import StepFiles
from fdl.run_pages.cache import Cache
from fdl.run_pages.rows import row, signature, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from fdl.run_directory.run import Run

_FRESH_SECONDS = 1.0
"""How long what was found on the disk is taken as it is."""


class Entry:
    """A run on the page.

    Attributes:
        id: Its number on the page, from 0.
        path: Its folder.
        row: What the page shows of it, see :func:`fdl.run_pages.rows.row`.
        changed: The version of the catalog in which it changed last.
        grown: The sizes of its curves when it was last looked at.
    """

    def __init__(self, number: int, path: Path) -> None:
        self.id = number
        self.path = path
        self.row: dict[str, Any] = {}
        self.changed = 0
        self.signature = ""
        self.grown: tuple[int, ...] = ()
        self._table = "{}"

    def take(self, row: dict[str, Any], table: str) -> None:
        """Replace what is known of the run."""
        self.row, self._table = row, table

    @property
    def table(self) -> dict[str, list[Any]]:
        """Its metrics by epoch, see :func:`fdl.run_pages.rows.table`."""
        content: dict[str, list[Any]] = json.loads(self._table)
        return content


class Catalog:
    """The runs of some folders. Several threads may use it.

    Args:
        find: Returns the runs, in the order of the page.
        cache: Where rows are kept between two programs.
    """

    def __init__(self, find: Callable[[], Sequence[Run]], cache: Cache | None = None) -> None:
        self._find = find
        self._cache = cache or Cache()
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._order: list[Entry] = []
        self._looked = 0.0
        self._version = 0
        self._next = 0

    @classmethod
    def of_places(cls, places: Sequence[Path], cache: Cache | None = None) -> Catalog:
        """The catalog of all runs in some folders."""
        return cls(lambda: search(places), cache)

    def entries(self) -> list[Entry]:
        """All runs as they were last seen, in the order of the page."""
        with self._lock:
            if not self._looked:
                self._refresh()
            return list(self._order)

    def by_id(self, number: int) -> Entry | None:
        """The run with a number, as it was last seen."""
        return next((one for one in self.entries() if one.id == number), None)

    def changes(self, since: int) -> dict[str, Any]:
        """The order of all runs, and the rows that changed after a version, as JSON data."""
        with self._lock:
            self._refresh()
            return {
                "version": self._version,
                "order": [entry.id for entry in self._order],
                "rows": [
                    {"id": entry.id, **entry.row} for entry in self._order if entry.changed > since
                ],
            }

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._looked and now - self._looked < _FRESH_SECONDS:
            return
        runs = self._find()
        marks = {str(run.path): signature(run.path) for run in runs}
        known = self._entries
        self._entries = {}
        changed = []
        for run in runs:
            key = str(run.path)
            entry = known.get(key) or Entry(self._number(), run.path)
            self._entries[key] = entry
            if entry.signature != marks[key] or self._has_grown(entry, run):
                changed.append((entry, run))
        before = [one.id for one in self._order]
        self._order = list(self._entries.values())
        if changed or before != [one.id for one in self._order]:
            self._version += 1
        self._read(changed, marks)
        self._looked = time.monotonic()

    def _has_grown(self, entry: Entry, run: Run) -> bool:
        """Whether its state or its curves changed without a change of the other files."""
        if entry.row["state"] != run.state:
            return True
        if run.state != RUNNING:
            return False
        return entry.grown != StepFiles.read(run.path).signature()

    def _read(self, changed: Sequence[tuple[Entry, Run]], marks: dict[str, str]) -> None:
        kept = self._cache.read({str(entry.path): marks[str(entry.path)] for entry, _ in changed})
        made = []
        for entry, run in changed:
            key = str(entry.path)
            if key in kept and (found := _parsed(kept[key])):
                content, by_epoch = found
            else:
                content, by_epoch = row(run), json.dumps(table(run))
                if run.state != RUNNING:
                    made.append((key, marks[key], json.dumps([content, by_epoch])))
            # These depend on the moment and on the working directory, not only on the files.
            content |= {"state": run.state, "seconds": run.seconds, "path": _typed(run)}
            entry.take(content, by_epoch)
            entry.signature = marks[key]
            entry.changed = self._version
            if run.state == RUNNING:
                entry.grown = StepFiles.read(run.path).signature()
        if made:
            self._cache.write(made)

    def _number(self) -> int:
        self._next += 1
        return self._next - 1


def _typed(run: Run) -> str:
    from fdl.run_directory.find import shortened

    return str(shortened(run.path))


def _parsed(text: str) -> tuple[dict[str, Any], str] | None:
    try:
        content, by_epoch = json.loads(text)
    except ValueError:
        return None
    return content, by_epoch


def reports(entries: Iterable[Entry], target: Path) -> dict[int, str]:
    """The path of each run's report, relative to the folder of a file that links to it."""
    return {
        entry.id: os.path.relpath(entry.path / "report.html", target.parent)
        for entry in entries
        if entry.row["has_report"]
    }
