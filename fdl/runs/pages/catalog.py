"""All runs of a page, what is known of each, and which of them changed."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import threading
import time
from contextlib import closing, suppress
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from fdl.base.cache_folder import cache_folder
from fdl.base.own_files import read_ahead
from fdl.runs.find import search
from fdl.runs.metrics import Metrics
from fdl.runs.pages.rows import READ, listed, moment, row, signature
from fdl.runs.run import RUNNING, Notes, Run, Setting
from fdl.runs.step_files import StepFiles
from fdl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

_FRESH_SECONDS = 1.0
"""How long what was found on the disk is taken as it is."""

_FIRST_PART_SECONDS = 0.1
"""How long runs are read before the first of them are shown. Each part takes twice as long."""

_READ_AHEAD = 500

_MANY = 1000
"""More new runs than these are listed by their records before their other files are read."""

_CACHE = "run-pages.sqlite3"
_SCHEMA = 6
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
        with suppress(OSError):  # perhaps this machine has no folder for a cache
            try:
                self._write(rows)
            except sqlite3.DatabaseError:
                # It is damaged or of another program, and holds nothing that is not elsewhere.
                self._file.unlink()

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
    """A run on the page, as it was read in one version of the catalog.

    Attributes:
        id: Its number on the page, from 0.
        path: Its folder.
        changed: The version of the catalog in which it changed last.
        signature: Of its files.
        state: The state of the run.
        grown: The sizes of its curves when it was last looked at, if it trains.
    """

    def __init__(self, number: int, run: Run, text: str, mark: str) -> None:
        """Take what the page shows of a run's files, as JSON, and the signature of these files."""
        self.id, self.path, self.changed = number, run.path, 0
        self.signature, self.state, self.grown = mark, run.state, _grown(run)
        self._found, self._text, self._moment = run, text, moment(run)

    @cached_property
    def row(self) -> dict[str, Any]:
        """What the page shows of the run."""
        return {**json.loads(self._text), **self._moment}

    def as_json(self) -> str:
        """The same with its number, as JSON; the text of 10,000 rows is not parsed for that."""
        return f"{json.dumps({'id': self.id, **self._moment})[:-1]}, {self._text[1:]}"

    @cached_property
    def run(self) -> Run:
        """The run for conditions; its files are not read again, because the row has what they say.

        Of each metric, conditions compare the lowest, the highest and the latest value.
        """
        run, row = copy(self._found), self.row
        rows = [
            {name: float(one[key]) for name, one in row["metrics"].items() if one[key] is not None}
            for key in ("min", "max", "latest")
        ]
        run.metrics = Metrics(list(row["metrics"]), [row["epochs"]] * 3, rows.__getitem__)
        run.settings = {name: Setting(*pair) for name, pair in row["config"].items()}
        run.notes = Notes(tuple(row["tags"]), row["note"])
        return run

    @cached_property
    def metrics(self) -> Metrics:
        """Its metrics by epoch, read when they are drawn for the first time."""
        return Run(self.path, self._found.record).metrics


def _grown(run: Run) -> tuple[int, ...]:
    return StepFiles.read(run.path).signature() if run.state == RUNNING else ()


class Changes(NamedTuple):
    """What a page is told.

    Attributes:
        session: Tells one catalog from another, whose versions and numbers are not the same.
        version: The version of the catalog.
        more: Whether runs are still being read.
        total: How many runs there are, those included.
        order: The numbers of the runs that were read, in the order of the page.
        entries: The runs that changed after the version that the page knows.
    """

    session: str
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
        places: The folders.
        cache: Where rows are kept between two programs.
    """

    def __init__(self, places: Sequence[Path], cache: Cache | None = None) -> None:
        self._places = places
        self._cache = cache or Cache()
        # Held by the thread that reads the disk.
        self._turn = threading.Lock()
        # Guards what follows, and tells of each part that was read.
        self._news = threading.Condition()
        self._numbers: dict[str, int] = {}
        self._entries: dict[str, Entry] = {}
        self._found: list[str] = []
        self._order: list[Entry] = []
        self._reading = False
        self._looked = 0.0
        self._session = secrets.token_hex(8)
        self._version = 0

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
            total = len(self._found)
            return Changes(self._session, self._version, self._reading, total, order, news)

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
            runs = {str(run.path): run for run in search(self._places)}
            self._found = list(runs)
            for key in runs:
                self._numbers.setdefault(key, len(self._numbers))
            self._entries = {key: one for key, one in self._entries.items() if key in runs}
            self._publish(self._listed(runs))
            marks = {key: signature(run.path) for key, run in runs.items()}
            self._read({key: run for key, run in runs.items() if self._is_new(run, marks)}, marks)
            self._looked = time.monotonic()

    def _listed(self, runs: Mapping[str, Run]) -> dict[str, Entry]:
        """New runs by their records alone, if there are many; their other files are read later."""
        new = {key: run for key, run in runs.items() if key not in self._entries}
        if len(new) <= _MANY:
            return {}
        return {
            key: Entry(self._numbers[key], run, json.dumps(listed(run)), "")
            for key, run in new.items()
        }

    def _is_new(self, run: Run, marks: Mapping[str, str]) -> bool:
        """Whether the files, the state or the curves of a run changed since it was read."""
        key = str(run.path)
        entry = self._entries.get(key)
        known = entry and (entry.signature, entry.state, entry.grown)
        return known != (marks[key], run.state, _grown(run))

    def _publish(self, made: Mapping[str, Entry]) -> None:
        """Let readers see what was read."""
        with self._news:
            for entry in made.values():
                entry.changed = self._version + 1
            self._entries.update(made)
            before = self._order
            self._order = [self._entries[key] for key in self._found if key in self._entries]
            if before != self._order:
                self._version += 1
            self._news.notify_all()

    def _read(self, runs: Mapping[str, Run], marks: Mapping[str, str]) -> None:
        kept = self._cache.read({key: marks[key] for key in runs})
        known = {
            key: Entry(self._numbers[key], runs[key], text, marks[key])
            for key, text in kept.items()
            if runs[key].state != RUNNING
        }
        self._publish(known)
        self._read_files([run for key, run in runs.items() if key not in known], marks)

    def _read_files(self, runs: Sequence[Run], marks: Mapping[str, str]) -> None:
        made: dict[str, Entry] = {}
        to_keep = []
        length = _FIRST_PART_SECONDS
        ends = time.monotonic() + length
        for place, run in enumerate(runs):
            if place % _READ_AHEAD == 0:
                ahead = runs[place : place + _READ_AHEAD]
                read_ahead(f"{one.path}{os.sep}{file}" for one in ahead for file in READ)
            key, text = str(run.path), json.dumps(row(run))
            made[key] = Entry(self._numbers[key], run, text, marks[key])
            if run.state != RUNNING:
                to_keep.append((key, marks[key], text))
            if time.monotonic() > ends or place == len(runs) - 1:
                self._publish(made)
                made = {}
                length *= 2
                ends = time.monotonic() + length
        if to_keep:
            self._cache.write(to_keep)
