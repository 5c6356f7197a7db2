"""Laying out a page: headings, aligned rows, wrapped descriptions.

Our own few lines instead of rich or textwrap, so that ``fdl --help`` starts as fast as a command.
"""

from __future__ import annotations

from fdl.base.light_record import Record
from fdl.base.output import Palette, columns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO

_WIDEST = 100
_NARROWEST = 40
# A longer name gets a line of its own, so that one of them does not push all descriptions away.
_LABEL_LIMIT = 28


def terminal_width(stream: TextIO) -> int:
    """Columns to fill on ``stream``: its terminal's, or 80, within what reads well."""
    return max(_NARROWEST, min(columns(stream) or 80, _WIDEST))


def cells(text: str) -> int:
    """Terminal columns of a text: East Asian characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


def wrap(text: str, width: int) -> list[str]:
    """Break a text at blanks, newlines included; a word longer than the line stands alone."""
    lines: list[str] = []
    for word in text.split():
        if lines and cells(lines[-1]) + 1 + cells(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


class Row(Record):
    """One line of a table: a label, its description, and an aside behind it.

    Attributes:
        label: What stands in the left column.
        text: The description, wrapped in the right column.
        aside: Dimmed words after the description, kept together, such as an origin.
        depth: Levels of further indentation.
        notes: Dimmed words that flow on behind the description, such as a default.
    """

    label: str
    text: str = ""
    aside: str = ""
    depth: int = 0
    notes: str = ""


class Page:
    """A help page being written, top to bottom."""

    def __init__(self, palette: Palette, width: int) -> None:
        self._palette = palette
        self._width = width
        self._blocks: list[list[str]] = []

    def title(self, name: str, description: str | None) -> None:
        """The first line: what the page is about."""
        lines = wrap(f"{name} - {description}" if description else name, self._width)
        lines[0] = lines[0].replace(name, self._palette.bold(name), 1)
        self._blocks.append(lines)

    def usage(self, text: str) -> None:
        """The usage line."""
        self.line("Usage", text)

    def line(self, label: str, text: str) -> None:
        """A label and a text behind it."""
        indent = " " * (cells(label) + 2)
        first, *more = wrap(text, self._width - len(indent))
        lines = [f"{self._palette.bold(f'{label}:')} {first}", *(indent + line for line in more)]
        self._blocks.append(lines)

    def table(self, heading: str, rows: Iterable[Row]) -> None:
        """A heading with rows in two aligned columns; nothing at all without rows."""
        listed = list(rows)
        if not listed:
            return
        ends = [2 + cells(row.label) for row in listed]
        column = max([end for end in ends if end <= _LABEL_LIMIT + 2], default=_LABEL_LIMIT) + 2
        block = [self._palette.bold(f"{heading}:")]
        for row, end in zip(listed, ends, strict=True):
            lines = self._described(row, max(self._width - column, _NARROWEST // 4))
            first = f"  {self._palette.cyan(row.label)}"
            if lines and end + 2 <= column:
                first += " " * (column - end) + lines.pop(0)
            block += [first, *(" " * column + line for line in lines)]
        self._blocks.append(block)

    def prose(self, text: str) -> None:
        """A wrapped paragraph."""
        self._blocks.append(wrap(text, self._width))

    def render(self) -> str:
        """The page, ending in a newline."""
        return "\n\n".join("\n".join(block) for block in self._blocks) + "\n"

    def _described(self, row: Row, width: int) -> list[str]:
        """The right column of a row; all words but those of the description are dimmed."""
        left = len(row.text.split())
        styled = []
        for line in wrap(f"{row.text} {row.notes} {row.aside}", width):
            words = line.split(" ")
            parts = (" ".join(words[:left]), self._palette.dim(" ".join(words[left:])))
            styled.append(" ".join(part for part in parts if part))
            left = max(left - len(words), 0)
        return styled if any(styled) else []
