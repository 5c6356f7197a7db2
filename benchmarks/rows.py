"""Rows of figures that several calls of a benchmark keep as JSON beside its page.

One call rarely has the time to measure everything. Each call reads what earlier ones kept, replaces
its own rows or adds rounds to them, and writes the file after each row. The page shows all rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import environment
from fdl.base.files import put

Row = dict[str, Any]
"""What a benchmark keeps under one name. :func:`continued` knows ``where`` and ``dates``."""


@dataclass(slots=True)
class Kept:
    """The rows of a benchmark.

    Attributes:
        rows: Name -> what is kept, as JSON values.
        path: The JSON file; None keeps nothing for the next call.
    """

    rows: dict[str, Any]
    path: Path | None

    @classmethod
    def beside(cls, page: Path | None) -> Kept:
        """The rows beside a page; none if there is no page or nothing was measured."""
        path = page.with_suffix(".json") if page is not None else None
        if path is None or not path.exists():
            return cls({}, path)
        return cls(json.loads(path.read_text(encoding="utf-8")), path)

    def write(self) -> None:
        """Replace the file."""
        if self.path is not None:
            put(self.path, f"{json.dumps(self.rows, indent=1)}\n".encode())


def continued(row: Mapping[str, Any] | None, *packages: str) -> Row:
    """A copy of the row to which rounds of today are added.

    Args:
        row: What earlier calls kept; None if there is nothing.
        packages: The packages whose versions matter.

    Returns:
        The row with the date of today. Of a row of another machine or of other versions, nothing
        is left.
    """
    where, today = environment(*packages).rsplit(", ", 1)
    if row is None or row["where"] != where:
        return {"where": where, "dates": [today]}
    return {**row, "dates": sorted({*row["dates"], today})}
