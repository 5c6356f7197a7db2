"""What was read of runs, kept in the user's cache folder so that a page opens at once."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from fdl.base.cache_folder import cache_folder
from fdl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_FILE = "run-pages.sqlite3"
_SCHEMA = 4
_MOST = 20_000
"""Runs that are kept; the cache is emptied when it holds more."""


class Cache:
    """Texts by path, each valid for one signature. A cache that cannot be used is empty.

    Args:
        file: The file; by default one in the user's cache folder.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file or cache_folder() / _FILE
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
            if kept + len(rows) > _MOST:
                database.execute("DELETE FROM runs")
            database.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", rows)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=1)


def _key(path: str) -> str:
    """A path as the database takes it; file names need not be UTF-8."""
    return path.encode("utf-8", "backslashreplace").decode()
