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
# Further indentation of a label's second line.
_CONTINUATION = 4


def terminal_width(stream: TextIO) -> int:
    """Columns to fill on ``stream``: its terminal's, or 80, within what reads well."""
    return max(_NARROWEST, min(columns(stream) or 80, _WIDEST))


def columns(stream: TextIO) -> int | None:
    """Columns of the terminal behind ``stream``; None without one, unless COLUMNS says so."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def cells(text: str) -> int:
    """Terminal columns of a text: East Asian characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


def cut(text: str, width: int) -> str:
    """A text of at most ``width`` columns; an ellipsis stands for what is missing."""
    if cells(text) <= width:
        return text
    kept = ""
    for char in text:
        if cells(kept) + cells(char) + 1 > width:
            break
        kept += char
    return f"{kept.rstrip()}…"


def wrap(text: str, width: int) -> list[str]:
    """Break a text at blanks, newlines included; a word longer than the line stands alone."""
    return _filled(text.split(), width)


def fold(text: str, width: int) -> list[str]:
    """The same for a text whose blanks mean something: joined by one blank it is what it was."""
    return _filled(text.split(" "), width)


def _filled(words: list[str], width: int) -> list[str]:
    lines: list[str] = []
    for word in words:
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
        aside: Dimmed words after the description, kept together, such as an origin.
        depth: Levels of further indentation.
        notes: Dimmed words that flow on behind the description, such as a default.
    """

    __slots__ = ("aside", "depth", "label", "notes", "text")

    def __init__(
        self, label: str, text: str = "", aside: str = "", depth: int = 0, notes: str = ""
    ) -> None:
        self.label = label
        self.text = text
        self.aside = aside
        self.depth = depth
        self.notes = notes

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
        first, *more = fold(text, self._width - len("Usage: "))
        indent = " " * len("Usage: ")
        lines = [f"{self._palette.bold('Usage:')} {first}", *(indent + line for line in more)]
        self._blocks.append(lines)

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
        room = max(self._width - column, _NARROWEST // 4)
        plain = wrap(f"{row.text} {row.notes}", room)
        lines = self._noted(plain, len(row.text.split()))
        if row.aside:
            self._add_aside(lines, row.aside, room, (cells(plain[-1]), text_width))
        label, *more = fold(row.label, self._width - row.indent - _CONTINUATION)
        labels = [" " * row.indent + self._palette.cyan(label)]
        indent = " " * (row.indent + _CONTINUATION)
        labels += [indent + self._palette.cyan(part) for part in more]
        if not any(lines):
            return labels
        margin = " " * column
        end = row.indent + cells(label)
        if more or end + 2 > column:
            return [*labels, *(margin + line for line in lines)]
        first = labels[0] + " " * (column - end) + lines[0]
        return [first, *(margin + line for line in lines[1:])]

    def _noted(self, lines: list[str], described: int) -> list[str]:
        """Wrapped lines with all words dimmed but the first ``described`` ones."""
        styled = []
        for line in lines:
            words = line.split(" ")
            parts = (" ".join(words[:described]), self._palette.dim(" ".join(words[described:])))
            styled.append(" ".join(part for part in parts if part))
            described = max(described - len(words), 0)
        return styled

    def _add_aside(self, lines: list[str], aside: str, room: int, ends: tuple[int, int]) -> None:
        """Put the aside behind the last line, or below it when there is no room.

        Args:
            lines: The lines of the right column.
            aside: What to add.
            room: Columns of the right column.
            ends: Where the last line ends, and where it is to end so that asides line up.
        """
        end = max(ends)
        if end and end + 2 + cells(aside) <= room:
            lines[-1] += " " * (end - ends[0] + 2) + self._palette.dim(aside)
            return
        wrapped = [self._palette.dim(line) for line in wrap(aside, room)]
        lines[:] = [*lines, *wrapped] if ends[0] else wrapped
