"""The rows of the map: one JSON line per training, appended as soon as it is done."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any, final

from benchmarks.virtual_ranks_ways import Cell, arithmetic

Row = dict[str, Any]


@final
class Rows:
    """The rows of a file; a line that a killed program left unfinished is dropped.

    Args:
        path: The file; it need not exist. None: rows live as long as the program.

    Attributes:
        rows: The trainings by the key of their cell.
        validations: Comparisons with real ranks, by what was trained.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.rows: dict[str, Row] = {}
        self.validations: dict[str, Row] = {}
        self._alike: dict[Cell, Row] = {}
        if path is None or not path.exists():
            return
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            os.truncate(path, len(whole))
        for line in whole.splitlines():
            self._keep(json.loads(line))

    def __contains__(self, cell: Cell) -> bool:
        return cell.key in self.rows

    def alike(self, cell: Cell) -> Row | None:
        """Return a training with the same arithmetic on another clock; None without one."""
        same = arithmetic(cell)
        return None if same is None else self._alike.get(same)

    def add(self, row: Row) -> None:
        """Add a row, also to the file."""
        self._keep(row)
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _keep(self, row: Row) -> None:
        """Keep a training, or the latest comparison with real ranks."""
        if "validates" in row:
            self.validations[row["validates"]] = row
            return
        cell = cell_of(row)
        self.rows[cell.key] = row
        if (same := arithmetic(cell)) is not None:
            self._alike.setdefault(same, row)


def cell_of(row: Row) -> Cell:
    """Return the cell of a row."""
    known = {one.name: row[one.name] for one in fields(Cell) if one.name in row}
    return Cell(**{**known, "seeds": tuple(known["seeds"])})
