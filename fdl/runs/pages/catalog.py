"""All runs of a page, what is known of each, and which of them changed."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from contextlib import closing, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from fdl.base.cache_folder import cache_folder
from fdl.base.files import read_ahead
from fdl.runs.find import search
from fdl.runs.metrics import Best, Metric, Metrics
from fdl.runs.pages.rows import READ, moment, row, signature, table
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

_READ_AHEAD = 500

_CACHE = "run-pages.sqlite3"
_SCHEMA = 5
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
        changed: The version of the catalog in which it changed last; 0 before it was read.
        state: The state of the run.
        grown: The sizes of its curves when it was last looked at.
    """

    def __init__(self, number: int, path: Path) -> None:
        self.id = number
        self.path = path
        self.changed = 0
        self.signature = ""
        self.state = ""
        self.grown: tuple[int, ...] = ()
        self._found: Run | None = None
        self._text = "{}"
        self._moment: dict[str, Any] = {}

    def take(self, run: Run, text: str, mark: str, version: int) -> None:
        """Replace what is known of the run, in a version of the catalog.

        Args:
            run: The run as it was found.
            text: What the page shows of its files, as JSON; see :func:`fdl.runs.pages.rows.row`.
            mark: The signature of its files.
            version: The version of the catalog in which it changed.
        """
        for name in ("row", "run", "table"):
            self.__dict__.pop(name, None)
        self._found, self._text, self._moment = run, text, moment(run)
        self.state, self.signature, self.changed = run.state, mark, version

    @cached_property
    def row(self) -> dict[str, Any]:
        """What the page shows of the run."""
        return {**json.loads(self._text), **self._moment}

    def as_json(self) -> str:
        """The same with its number, as JSON; the text of 10,000 rows is not parsed for that."""
        return f"{json.dumps({'id': self.id, **self._moment})[:-1]}, {self._text[1:]}"

    @cached_property
    def run(self) -> Run:
        """The run for conditions, which are answered from the row."""
        if self._found is None:
            raise RuntimeError(f"{self.path} was not read")
        return _ReadRun(self._found, self.row)

    @cached_property
    def table(self) -> dict[str, list[Any]]:
        """Its metrics by epoch, see :func:`fdl.runs.pages.rows.table`."""
        return table(Run(self.path, self._found.record)) if self._found else {}


class _ReadRun(Run):
    """A run whose files need not be read again: its row has what they say."""

    def __init__(self, run: Run, row: dict[str, Any]) -> None:
        super().__init__(run.path, run.record, run.problem)
        self.state = run.state
        self._row = row

    @property
    def epochs(self) -> int:
        epochs: int = self._row["epochs"]
        return epochs

    @cached_property
    def metrics(self) -> Metrics:
        return _ReadMetrics(self._row["metrics"])

    @cached_property
    def settings(self) -> dict[str, Setting]:
        return {name: Setting(*pair) for name, pair in self._row["config"].items()}

    @cached_property
    def notes(self) -> Notes:
        return Notes(tuple(self._row["tags"]), self._row["note"])


class _ReadMetrics(Metrics):
    """What a condition compares of each metric, without the table."""

    def __init__(self, measured: dict[str, dict[str, Any]]) -> None:
        super().__init__(list(measured), [])
        self._measured = measured

    def latest(self) -> dict[str, float]:
        known = {name: one["latest"] for name, one in self._measured.items()}
        return {name: float(value) for name, value in known.items() if value is not None}

    def best(self, metric: Metric) -> Best | None:
        one = self._measured.get(metric.name, {})
        value = one.get("max" if metric.higher else "min")
        return None if value is None else Best(float(value), one["epoch"] or 0)


class Changes(NamedTuple):
    """What a page is told.

    Attributes:
        version: The version of the catalog.
        more: Whether runs are still being read.
        total: How many runs there are, those included.
        order: The numbers of the runs that were read, in the order of the page.
        entries: The runs that changed after the version that the page knows.
    """

    version: int
    more: bool
    total: int
    order: list[int]
    entries: list[Entry]

    def as_json(self) -> str:
        """The same as JSON."""
        head = self._asdict()
        del head["entries"]
        rows = ", ".join(entry.as_json() for entry in self.entries)
        return f'{json.dumps(head)[:-1]}, "rows": [{rows}]}}'


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

    def changes(self, since: int, patience: float | None = None) -> Changes:
        """The order of the runs, and those that changed after a version.

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
            order = [entry.id for entry in self._order]
            news = [entry for entry in self._order if entry.changed > since]
            return Changes(self._version, self._reading, len(self._entries), order, news)

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

    def _publish(self, made: Sequence[tuple[Entry, Run, str, str]]) -> None:
        """Let readers see what was read."""
        with self._news:
            for entry, run, text, mark in made:
                entry.take(run, text, mark, self._version + 1)
            before = self._order
            self._order = [entry for entry in self._entries.values() if entry.changed]
            if made or before != self._order:
                self._version += 1
            self._news.notify_all()

    def _has_grown(self, entry: Entry, run: Run) -> bool:
        """Whether its state or its curves changed without a change of the other files."""
        if entry.state != run.state:
            return True
        if run.state != RUNNING:
            return False
        return entry.grown != StepFiles.read(run.path).signature()

    def _read(self, changed: Sequence[tuple[Entry, Run]], marks: dict[str, str]) -> None:
        kept = self._cache.read({str(entry.path): marks[str(entry.path)] for entry, _ in changed})
        known, fresh = [], []
        for entry, run in changed:
            key = str(entry.path)
            if key in kept and run.state != RUNNING:
                known.append((entry, run, kept[key], marks[key]))
            else:
                fresh.append((entry, run))
        if known:
            self._publish(known)
        self._read_files(fresh, marks)

    def _read_files(self, fresh: Sequence[tuple[Entry, Run]], marks: dict[str, str]) -> None:
        made: list[tuple[Entry, Run, str, str]] = []
        to_keep = []
        length = _FIRST_PART_SECONDS
        ends = time.monotonic() + length
        for place, (entry, run) in enumerate(fresh):
            if place % _READ_AHEAD == 0:
                ahead = fresh[place : place + _READ_AHEAD]
                read_ahead(f"{one.path}{os.sep}{file}" for _, one in ahead for file in READ)
            content = row(run)
            for name in moment(run):
                del content[name]
            entry.grown = StepFiles.read(run.path).signature() if run.state == RUNNING else ()
            text, mark = json.dumps(content), marks[str(entry.path)]
            made.append((entry, run, text, mark))
            if run.state != RUNNING:
                to_keep.append((str(entry.path), mark, text))
            if time.monotonic() > ends or place == len(fresh) - 1:
                self._publish(made)
                made = []
                length *= 2
                ends = time.monotonic() + length
        if to_keep:
            self._cache.write(to_keep)

    def _number(self) -> int:
        self._next += 1
        return self._next - 1
