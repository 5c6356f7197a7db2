"""All runs of a page, what is known of each, and which of them changed."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from contextlib import closing, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fdl.base.cache_folder import cache_folder
from fdl.runs.find import search, shortened
from fdl.runs.metrics import Metrics
from fdl.runs.pages.rows import row, signature, table
from fdl.runs.run import RUNNING, Notes, Run, Setting
from fdl.runs.step_files import StepFiles
from fdl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

_FRESH_SECONDS = 1.0
"""How long what was found on the disk is taken as it is."""

_FIRST_PART_SECONDS = 0.1
"""How long runs are read before the first of them are shown. Each part takes twice as long."""

_CACHE = "run-pages.sqlite3"
_SCHEMA = 4
_MOST_CACHED = 20_000
"""Runs that are kept; the cache is emptied when it holds more."""


class Cache:
    """Texts by path, each valid for one signature. A cache that cannot be used is empty.

    Args:
        file: The file; by default one in the user's cache folder.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file or cache_folder() / _CACHE
        # Another version of the program may read runs in another way.
        self._mark = f"{_SCHEMA} {__version__} "

    def read(self, signatures: Mapping[str, str]) -> dict[str, str]:
        """The text of each path whose signature is still the same."""
        if not self._file.is_file():
            return {}
        known = {_key(path): path for path in signatures}
        with suppress(sqlite3.Error), closing(self._open()) as database:
            return {
                known[path]: content
                for path, signature, content in database.execute("SELECT * FROM runs")
                if path in known and self._mark + signatures[known[path]] == signature
            }
        return {}

    def write(self, entries: Iterable[tuple[str, str, str]]) -> None:
        """Keep path, signature and text of several runs."""
        rows = [(_key(path), self._mark + signature, text) for path, signature, text in entries]
        try:
            self._write(rows)
        except sqlite3.DatabaseError:
            # The file is damaged or of another program; it holds nothing that cannot be read again.
            with suppress(OSError):
                self._file.unlink()
        except OSError:
            return  # this machine has no folder for a cache

    def _write(self, rows: list[tuple[str, str, str]]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._open()) as database, database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS runs (path TEXT PRIMARY KEY, signature TEXT, text TEXT)"
            )
            (kept,) = database.execute("SELECT COUNT(*) FROM runs").fetchone()
            if kept + len(rows) > _MOST_CACHED:
                database.execute("DELETE FROM runs")
            database.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", rows)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=1)


def _key(path: str) -> str:
    """A path as the database takes it; file names need not be UTF-8."""
    return path.encode("utf-8", "backslashreplace").decode()


class Entry:
    """A run on the page.

    Attributes:
        id: Its number on the page, from 0.
        path: Its folder.
        row: What the page shows of it, see :func:`fdl.runs.pages.rows.row`.
        run: The run for conditions, which are answered from the row.
        changed: The version of the catalog in which it changed last.
        grown: The sizes of its curves when it was last looked at.
    """

    run: Run

    def __init__(self, number: int, path: Path) -> None:
        self.id = number
        self.path = path
        self.row: dict[str, Any] = {}
        self.changed = 0
        self.signature = ""
        self.grown: tuple[int, ...] = ()
        self._table = "{}"

    def take(self, run: Run, row: dict[str, Any], table: str, mark: str, version: int) -> None:
        """Replace what is known of the run, in a version of the catalog.

        Args:
            run: The run as it was found.
            row: What the page shows of it.
            table: Its metrics by epoch, as JSON.
            mark: The signature of its files.
            version: The version of the catalog in which it changed.
        """
        self.row, self._table = row, table
        self.run = _ReadRun(run, self)
        self.signature, self.changed = mark, version

    @property
    def table(self) -> dict[str, list[Any]]:
        """Its metrics by epoch, see :func:`fdl.runs.pages.rows.table`."""
        content: dict[str, list[Any]] = json.loads(self._table)
        return content


class _ReadRun(Run):
    """A run whose files need not be read again: its entry has what they say."""

    def __init__(self, run: Run, entry: Entry) -> None:
        super().__init__(run.path, run.record, run.problem)
        self.state = run.state
        self._entry = entry

    @property
    def epochs(self) -> int:
        epochs: int = self._entry.row["epochs"]
        return epochs

    @cached_property
    def metrics(self) -> Metrics:
        table = self._entry.table
        rows = [
            {
                name: float(cell)
                for name, cell in zip(table["names"], cells, strict=True)
                if cell is not None
            }
            for cells in table["values"]
        ]
        return Metrics(table["names"], list(zip(table["epoch"], rows, strict=True)))

    @cached_property
    def settings(self) -> dict[str, Setting]:
        return {name: Setting(*pair) for name, pair in self._entry.row["config"].items()}

    @cached_property
    def notes(self) -> Notes:
        return Notes(tuple(self._entry.row["tags"]), self._entry.row["note"])


class Catalog:
    """The runs of some folders. Several threads may use it.

    Args:
        find: Returns the runs, in the order of the page.
        cache: Where rows are kept between two programs.
    """

    def __init__(self, find: Callable[[], Sequence[Run]], cache: Cache | None = None) -> None:
        self._find = find
        self._cache = cache or Cache()
        # Held by the thread that reads the disk.
        self._turn = threading.Lock()
        # Guards what follows, and tells of each part that was read.
        self._news = threading.Condition()
        self._entries: dict[str, Entry] = {}
        self._order: list[Entry] = []
        self._reading = False
        self._looked = 0.0
        self._version = 0
        self._next = 0

    @classmethod
    def of_places(cls, places: Sequence[Path], cache: Cache | None = None) -> Catalog:
        """The catalog of all runs in some folders."""
        return cls(lambda: search(places), cache)

    def entries(self) -> list[Entry]:
        """All runs, in the order of the page; they are read at the first call."""
        if not self._looked:
            self._refresh()
        return self.known()

    def known(self) -> list[Entry]:
        """The runs that were read so far, in the order of the page."""
        with self._news:
            return list(self._order)

    def by_ids(self, numbers: Collection[int]) -> list[Entry]:
        """The runs with some numbers, as they were last seen, in the order of the page."""
        found = [one for one in self.known() if one.id in numbers]
        if len(found) < len(numbers) and not self._looked:
            found = [one for one in self.entries() if one.id in numbers]
        return found

    def start(self) -> None:
        """Begin to read in another thread, unless that is under way or was just done."""
        with self._news:
            if self._reading or self._is_fresh():
                return
            self._reading = True
        threading.Thread(target=self._read_apart, daemon=True).start()

    def changes(self, since: int, patience: float | None = None) -> dict[str, Any]:
        """The order of the runs, and the rows that changed after a version, as JSON data.

        Args:
            since: The version that the caller knows.
            patience: Seconds to wait for the first new row. ``more`` then says whether runs are
                still being read, and ``total`` how many there are. None waits for all of them.
        """
        if patience is None:
            self._refresh()
        else:
            self.start()
        with self._news:
            if patience is not None:
                self._news.wait_for(lambda: not self._reading or self._has_news(since), patience)
            return {
                "version": self._version,
                "more": self._reading,
                "total": len(self._entries),
                "order": [entry.id for entry in self._order],
                "rows": [
                    {"id": entry.id, **entry.row} for entry in self._order if entry.changed > since
                ],
            }

    def _has_news(self, since: int) -> bool:
        return any(entry.changed > since for entry in self._order)

    def _is_fresh(self) -> bool:
        return bool(self._looked) and time.monotonic() - self._looked < _FRESH_SECONDS

    def _read_apart(self) -> None:
        try:
            self._refresh()
        finally:
            with self._news:
                self._reading = False
                self._news.notify_all()

    def _refresh(self) -> None:
        with self._turn:
            if self._is_fresh():
                return
            runs = self._find()
            marks = {str(run.path): signature(run.path) for run in runs}
            entries = {}
            changed = []
            for run in runs:
                key = str(run.path)
                entry = self._entries.get(key) or Entry(self._number(), run.path)
                entries[key] = entry
                if entry.signature != marks[key] or self._has_grown(entry, run):
                    changed.append((entry, run))
            self._entries = entries
            self._publish([])
            self._read(changed, marks)
            self._looked = time.monotonic()

    def _publish(self, made: Sequence[tuple[Entry, Run, dict[str, Any], str, str]]) -> None:
        """Let readers see what was read."""
        with self._news:
            for entry, run, content, by_epoch, mark in made:
                entry.take(run, content, by_epoch, mark, self._version + 1)
            before = self._order
            self._order = [entry for entry in self._entries.values() if entry.row]
            if made or before != self._order:
                self._version += 1
            self._news.notify_all()

    def _has_grown(self, entry: Entry, run: Run) -> bool:
        """Whether its state or its curves changed without a change of the other files."""
        if entry.row["state"] != run.state:
            return True
        if run.state != RUNNING:
            return False
        return entry.grown != StepFiles.read(run.path).signature()

    def _read(self, changed: Sequence[tuple[Entry, Run]], marks: dict[str, str]) -> None:
        kept = self._cache.read({str(entry.path): marks[str(entry.path)] for entry, _ in changed})
        fresh, made = [], []
        length = _FIRST_PART_SECONDS
        ends = time.monotonic() + length
        for entry, run in changed:
            key = str(entry.path)
            if key in kept and (found := _parsed(kept[key])):
                content, by_epoch = found
            else:
                content, by_epoch = row(run), json.dumps(table(run))
                if run.state != RUNNING:
                    fresh.append((key, marks[key], json.dumps([content, by_epoch])))
            # These depend on the moment and on the working directory, not only on the files.
            content |= {
                "state": run.state,
                "seconds": run.seconds,
                "path": str(shortened(run.path)),
            }
            entry.grown = StepFiles.read(run.path).signature() if run.state == RUNNING else ()
            made.append((entry, run, content, by_epoch, marks[key]))
            if time.monotonic() > ends:
                self._publish(made)
                made = []
                length *= 2
                ends = time.monotonic() + length
        if made:
            self._publish(made)
        if fresh:
            self._cache.write(fresh)

    def _number(self) -> int:
        self._next += 1
        return self._next - 1


def _parsed(text: str) -> tuple[dict[str, Any], str] | None:
    try:
        content, by_epoch = json.loads(text)
    except ValueError:
        return None
    return content, by_epoch
