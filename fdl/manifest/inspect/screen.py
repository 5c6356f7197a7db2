"""Values with their origins in one column, for a pipe or for a terminal of some width.

A pipe gets one line per value. On a terminal the origins begin at column 60 or before it. A longer
value is wrapped, and its origin has a line of its own.
"""

from __future__ import annotations

import sys

from fdl.base.layout import cells, wrap
from fdl.base.light_record import Record
from fdl.base.output import columns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.base.output import Palette

_LAST_COLUMN = 59
"""Where origins begin at most, counted from 0."""

# Most origins are not longer: `train/fdl.yml:12, preset quick`.
_ORIGIN_WIDTH = 30
_NARROWEST = 20
_INDENT = 4


class Row(Record):
    """One value.

    Attributes:
        head: The beginning of its first line, which is never broken.
        text: The value. It is broken at single blanks.
        origin: Where it comes from; empty for a line without an origin.
        name: What messages call it.
        styled: The head with its styles; empty for a head without styles.
    """

    head: str
    text: str
    origin: str = ""
    name: str = ""
    styled: str = ""

    @property
    def line(self) -> str:
        """The value on one line, without its origin."""
        return f"{self.head} {self.text}" if self.head and self.text else self.head + self.text


class Layout(Record):
    """How rows are laid out.

    Attributes:
        palette: The styles.
        width: Columns of the terminal; None for a pipe.
        mark: What origins begin with: ``# `` in YAML.
        least: The column of origins behind short values.
    """

    palette: Palette
    width: int | None
    mark: str = ""
    least: int = 0

    def text(self, rows: Sequence[Row]) -> str:
        """All rows, one or more lines each. Names the rows in which a word is too long."""
        width = self.width
        measure = len if width is None else cells
        ends = [measure(row.line) + 2 for row in rows if row.origin and row.line]
        if width is None:
            column = max(self.least, *ends, 0)
            return "".join(f"{self._whole(row, column)}\n" for row in rows)
        limit = min(_LAST_COLUMN, max(width - _ORIGIN_WIDTH, _NARROWEST))
        column = max(self.least, *(end for end in ends if end <= limit), 0)
        too_wide: dict[str, None] = {}
        lines = [line for row in rows for line in self._fitted(row, column, width, too_wide)]
        if too_wide:
            names = f"wider than this terminal: {', '.join(too_wide)}"
            lines += self._fitted(Row("", "", names), 0, width, {})
        return "".join(f"{line}\n" for line in lines)

    def _whole(self, row: Row, column: int) -> str:
        """A row on one line."""
        gap = " " * (column - len(row.line)) if row.origin and row.line else ""
        return (row.styled or row.head) + row.line[len(row.head) :] + gap + self._dim(row.origin)

    def _fitted(self, row: Row, column: int, width: int, too_wide: dict[str, None]) -> list[str]:
        """A row on as many lines as it needs."""
        indent = len(row.head) - len(row.head.lstrip()) + _INDENT if row.line else 0
        body = _broken(row, indent, width) if row.line else []
        room = width - len(self.mark)
        if not body or column < indent or max(map(cells, row.origin.split(" "))) > room - column:
            column = indent
        fits = cells(row.origin) <= room - column
        origins = [row.origin] if fits else wrap(row.origin, room - column)
        if max(map(cells, [*body, *(" " * column + self.mark + one for one in origins)])) > width:
            too_wide[row.name] = None
        beside = len(body) == 1 and cells(body[0]) + 2 <= column
        head = row.styled or row.head
        shown = [head + body[0][len(row.head) :], *body[1:]] if body else []
        if row.origin and beside:
            shown[0] += " " * (column - cells(body[0])) + self._dim(origins.pop(0))
        return [*shown, *(" " * column + self._dim(one) for one in origins if one)]

    def _dim(self, origin: str) -> str:
        return self.palette.dim(self.mark + origin) if origin else ""


def terminal_columns() -> int | None:
    """Columns of the terminal on stdout; None in a pipe."""
    return (columns(sys.stdout) or 80) if sys.stdout.isatty() else None


def _broken(row: Row, indent: int, width: int) -> list[str]:
    """The value on as many lines as it needs; what is YAML reads back to the same value."""
    made = [row.head]
    for word in _words(row.text) if row.text else ():
        line = f"{made[-1]} {word}" if made[-1].strip() else made[-1] + word
        if made[-1].strip() and cells(line) > width:
            line = " " * indent + word
            made.append("")
        made[-1] = line
    return made


def _words(text: str) -> list[str]:
    """A text split at its single blanks: YAML reads a line break there as one blank."""
    words: list[str] = []
    for word in text.split(" "):
        if words and (not word or words[-1].endswith(" ")):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words
