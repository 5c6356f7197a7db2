"""Tables of plain cells, from what people have at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flodl.monitor.media.records import Cell, Table, Text

MOST_ROWS = 1000
MOST_COLUMNS = 200
LONGEST_CELL = 2000
"""Characters of one cell."""

LONGEST_TEXT = 100_000
"""Characters of one text."""


def table_of(rows: Any, columns: Sequence[str] | None = None) -> Table:
    """Return a table of the first 1,000 rows.

    Args:
        rows: Sequences of cells with `columns`, mappings, or one mapping of columns.
        columns: Names of the columns; for mappings, None takes the keys in order of appearance.

    Raises:
        ValueError: The rows are none of these, or do not fit the columns.
    """
    if isinstance(rows, Mapping):
        names, found = _by_column(rows, columns)
    elif isinstance(rows, (str, bytes)) or not isinstance(rows, Sequence):
        raise ValueError(
            f"a table of a {type(rows).__name__}: pass a list of rows or a mapping of columns"
        )
    elif rows and all(isinstance(row, Mapping) for row in rows):
        names = columns or list(dict.fromkeys(key for row in rows for key in row))
        found = [[row.get(name) for name in names] for row in rows]
    elif columns is None:
        raise ValueError("a table of rows without names: pass columns=[…], one name per cell")
    else:
        names, found = columns, list(rows)
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"a table of {len(names)} columns: at most {MOST_COLUMNS} are shown")
    kept = []
    for number, row in enumerate(found[:MOST_ROWS], 1):
        if isinstance(row, (str, bytes)) or not isinstance(row, Sequence) or len(row) != len(names):
            cells = len(row) if isinstance(row, Sequence) else 1
            raise ValueError(
                f"row {number} of the table has {cells} cells for {len(names)} columns"
            )
        kept.append(tuple(_cell(value) for value in row))
    return Table(tuple(map(str, names)), tuple(kept), len(found) - len(kept))


def text_of(text: object) -> Text:
    """Return a text of at most 100,000 characters.

    Raises:
        ValueError: It is not a text.
    """
    if not isinstance(text, str):
        raise ValueError(f"a {type(text).__name__} is not a text; pass str(value)")
    return Text(text[:LONGEST_TEXT], max(0, len(text) - LONGEST_TEXT))


def _by_column(
    content: Mapping[Any, Any], columns: Sequence[str] | None
) -> tuple[Sequence[str], list[Sequence[Any]]]:
    names = list(content) if columns is None else columns
    if missing := [name for name in names if name not in content]:
        raise ValueError(f"the table has no column {missing[0]!r}; it has {list(content)}")
    held = [content[name] for name in names]
    lists = [list(one.tolist() if hasattr(one, "tolist") else one) for one in held]
    lengths = {str(name): len(values) for name, values in zip(names, lists, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns of the table have different lengths: {lengths}")
    return names, [list(row) for row in zip(*lists, strict=True)]


def _cell(value: Any) -> Cell:
    if hasattr(value, "dtype") and hasattr(value, "tolist"):  # of torch or NumPy
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = str(value)
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"
