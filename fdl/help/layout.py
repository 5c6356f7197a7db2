"""Laying out a page: headings, aligned rows, wrapped descriptions.

Our own few lines instead of rich or textwrap, so that ``fdl --help`` starts as fast as a command.
"""

from __future__ import annotations

import os

from fdl.output import Palette

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
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        width = int(columns)
    else:
        try:
            width = os.get_terminal_size(stream.fileno()).columns or 80
        except (OSError, ValueError):
            width = 80
    return max(_NARROWEST, min(width, _WIDEST))


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


class Row:
    """One line of a table: a label, its description, and an aside behind it.

    Attributes:
        label: What stands in the left column.
        text: The description, wrapped in the right column.
        aside: Dimmed words after the description, such as an origin.
        depth: Levels of further indentation.
    """

    __slots__ = ("aside", "depth", "label", "text")

    def __init__(self, label: str, text: str = "", aside: str = "", depth: int = 0) -> None:
        self.label = label
        self.text = text
        self.aside = aside
        self.depth = depth

    @property
    def indent(self) -> int:
        """Blanks before the label."""
        return 2 + 2 * self.depth


class Page:
    """A help page being written, top to bottom."""

    def __init__(self, palette: Palette, width: int) -> None:
        self._palette = palette
        self._width = width
        self._blocks: list[list[str]] = []

    def title(self, name: str, description: str | None) -> None:
        """The first line: what the page is about."""
        room = max(self._width - cells(name) - 1, self._width // 2)
        lines = wrap(f"- {description}" if description else "", room)
        first = f"{self._palette.bold(name)} {lines[0]}".rstrip()
        rest = wrap(" ".join(lines[1:]), self._width) if lines[1:] else []
        self._blocks.append([first, *rest])

    def usage(self, text: str) -> None:
        """The usage line."""
        self._blocks.append([f"{self._palette.bold('Usage:')} {text}"])

    def table(self, heading: str, rows: Iterable[Row]) -> None:
        """A heading with rows in two aligned columns; nothing at all without rows."""
        listed = list(rows)
        if not listed:
            return
        ends = [row.indent + cells(row.label) for row in listed]
        column = max([end for end in ends if end <= _LABEL_LIMIT + 2], default=_LABEL_LIMIT) + 2
        # Asides line up behind short values; behind sentences they follow where these end.
        widest = max((cells(row.text) for row in listed if row.aside), default=0)
        block = [self._palette.bold(f"{heading}:")]
        for row in listed:
            block += self._row(row, column, widest if widest <= _LABEL_LIMIT else 0)
        self._blocks.append(block)

    def verbatim(self, heading: str, lines: Iterable[str]) -> None:
        """A heading with lines that are not wrapped: commands to read or copy."""
        self._blocks.append(
            [self._palette.bold(f"{heading}:"), *(f"  {line}".rstrip() for line in lines)]
        )

    def prose(self, text: str) -> None:
        """A wrapped paragraph."""
        self._blocks.append(wrap(text, self._width))

    def render(self) -> str:
        """The page, ending in a newline."""
        return "\n\n".join("\n".join(block) for block in self._blocks) + "\n"

    def command(self, heading: str, words: Iterable[str]) -> None:
        """A heading with a shell command, continued over lines between its words."""
        lines = [""]
        for word in words:
            if lines[-1] and cells(lines[-1]) + 1 + cells(word) > self._width - 4:
                lines[-1] += " \\"
                lines.append("  ")
            lines[-1] += word if not lines[-1].strip() else f" {word}"
        self.verbatim(heading, lines)

    def _row(self, row: Row, column: int, text_width: int) -> list[str]:
        label = " " * row.indent + self._palette.cyan(row.label)
        lines = wrap(row.text, max(self._width - column, _NARROWEST // 4)) if row.text else [""]
        if row.aside:
            lines[-1] += " " * (text_width - cells(lines[-1]))
            self._add_aside(lines, row.aside, column)
        if not any(lines):
            return [label]
        margin = " " * column
        end = row.indent + cells(row.label)
        if end + 2 > column:
            return [label, *(margin + line for line in lines)]
        first = label + " " * (column - end) + lines[0]
        return [first, *(margin + line for line in lines[1:])]

    def _add_aside(self, lines: list[str], aside: str, column: int) -> None:
        """Put the aside behind the last line, or below it when there is no room."""
        dimmed = self._palette.dim(aside)
        if not lines[-1].strip():
            lines[-1] += f"  {dimmed}" if lines[-1] else dimmed
        elif column + cells(lines[-1]) + 2 + cells(aside) <= self._width:
            lines[-1] += f"  {dimmed}"
        else:
            lines.append(dimmed)
