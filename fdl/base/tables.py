"""Tables, headed sections and help pages, drawn by rich.

A terminal and a pipe get the same text. Tables have no lines and no boxes, so a script has nothing
to strip. In a pipe every value is whole. On help pages a terminal gets panels, as Typer draws them.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group
from rich.padding import Padding
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fdl.base import layout as layout, output
from fdl.base.masking import KNOWN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

TROUBLE = "bold red"
"""Style of what is broken or has failed."""


class _Table(Table):
    """Aligned columns. Where every cell fits, rich need not measure them: it takes long."""

    heads: list[str | Text]
    body: list[list[str | Text]]
    styles: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the table."""
        head = [self.heads] if self.show_header else []
        rows = [[str(cell) for cell in row] for row in (*head, *self.body)]
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        # rich knows what to do with line breaks and control characters, and with too little room.
        sound = all(map(str.isprintable, chain.from_iterable(rows)))
        fits = sum(widths) + 2 * (len(widths) - 1) <= options.max_width
        is_coloured = console.is_terminal or console.color_system
        if not (sound and fits) or (is_coloured and (self.styles or self._has_spans())):
            yield from super().__rich_console__(console, options)
            return
        styles = [["bold"] * len(self.heads)] if self.show_header else []
        styles += [[_style_of(cell) for cell in row] for row in self.body]
        right = [one.justify == "right" for one in self.columns]
        for row, looks in zip(rows, styles, strict=True):
            yield from self._line(row, looks, widths, right, console)

    def _line(
        self,
        row: list[str],
        looks: list[str],
        widths: list[int],
        right: list[bool],
        console: Console,
    ) -> Iterator[Segment]:
        """One line, in one piece between cells that have a style."""
        plain = ""
        for cell, look, width, is_right in zip(row, looks, widths, right, strict=True):
            blanks = " " * (width - cell_len(cell))
            plain += blanks if is_right else ""
            if look and cell:
                yield Segment(plain)
                yield Segment(cell, console.get_style(look))
                plain = ""
            else:
                plain += cell
            plain += "  " if is_right else f"{blanks}  "
        yield Segment(plain.rstrip() + "\n")

    def _has_spans(self) -> bool:
        """Whether a part of a cell has a style of its own."""
        cells = chain(self.heads, chain.from_iterable(self.body))
        return any(isinstance(cell, Text) and bool(cell.spans) for cell in cells)


def _style_of(cell: str | Text) -> str:
    return str(cell.style) if isinstance(cell, Text) else ""


def table(
    rows: Iterable[Sequence[str | Text]],
    heads: Sequence[str] = (),
    *,
    styles: Sequence[str] = (),
    right: Collection[int] = (),
    wrap: Collection[int] = (),
) -> Table:
    """Rows in aligned columns.

    Args:
        rows: The cells; all rows have as many.
        heads: The headings of the columns; without them there is no heading line.
        styles: Styles of the first columns.
        right: Columns aligned to the right, such as numbers.
        wrap: Columns that continue below themselves where a terminal is too narrow. Without any,
            the last column is cut.
    """
    # Before a long cell is divided into lines, in which no secret is found.
    body = [list(KNOWN.texts(tuple(row))) for row in rows]
    count = max(map(len, [heads, *body]))
    drawn = _Table(
        box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=bool(heads), header_style="bold"
    )
    for place in range(count):
        drawn.add_column(
            heads[place] if heads else "",
            justify="right" if place in right else "left",
            no_wrap=place not in (wrap or (count - 1,)),
            overflow="fold" if place in wrap else "ellipsis",
        )
    drawn.styles = styles
    drawn.body, drawn.heads = [list(row) for row in body], list(heads)
    for row in body:
        # Blanks that fill a column have no style, so that none of them ends a line.
        row[: len(styles)] = [
            Text.assemble((cell, style)) if isinstance(cell, str) else cell
            for cell, style in zip(row, styles, strict=False)
        ]
        if not wrap:
            # rich takes room only from columns that may be wrapped, so the text itself refuses.
            row[-1] = Text.assemble(row[-1], no_wrap=True)
        drawn.add_row(*row)
    return drawn


def pairs(rows: Iterable[tuple[str, str]], style: str = "") -> Table:
    """Names and values side by side."""
    return table(rows, styles=(style,), wrap=(1,))


def lines(text: str, style: str = "") -> Text:
    """Text that is neither wrapped nor cut, such as commands to copy."""
    return Text(text, style=style, no_wrap=True, overflow="ignore")


def headed(sections: Iterable[tuple[str, RenderableType]]) -> Group:
    """Bodies below bold headings; a body without a heading is not indented."""
    parts: list[RenderableType] = []
    for title, body in sections:
        parts += [""] if parts else []
        parts += [Text(title, style="bold"), Padding.indent(body, 2)] if title else [body]
    return Group(*parts)


# A longer label is wrapped, so that one of them does not push all descriptions away.
_LABEL_LIMIT = 36


class Page(layout.Page):
    """A page with panels, and with commands to copy."""

    def table(self, heading: str, rows: Iterable[layout.Row]) -> None:
        """A heading with aligned rows; nothing at all without rows."""
        listed = list(rows)
        if not listed:
            return
        body = Table.grid(padding=(0, 2))
        limit = min(_LABEL_LIMIT, self._width // 2)
        body.add_column(style="cyan", max_width=limit, overflow="fold")
        # A column that is empty everywhere would leave a gap.
        has_text = any(row.text or row.notes for row in listed)
        has_aside = any(row.aside for row in listed)
        for row in listed:
            notes = f" {row.notes}" if row.text and row.notes else row.notes
            text = Text(row.text, overflow="fold").append(notes, "dim")
            aside = Text(row.aside, style="dim", overflow="fold")
            body.add_row("  " * row.depth + row.label, *[text] * has_text, *[aside] * has_aside)
        pen = output.console()
        if not pen.is_interactive or pen.options.ascii_only:
            parts = (Text(f"{heading}:", style="bold"), Padding.indent(body, 2))
            self._blocks.append(output.drawn(*parts, width=self._width).splitlines())
            return
        panel = Panel(body, title=Text(heading), title_align="left", border_style="dim")
        lines = output.drawn(panel, width=self._width).splitlines()
        if self._blocks and "╰" in self._blocks[-1][-1]:
            self._blocks[-1] += lines
        else:
            self._blocks.append(lines)

    def verbatim(self, heading: str, lines: Iterable[str]) -> None:
        """A heading with lines that are not wrapped: commands to read or copy."""
        self._blocks.append(
            [self._palette.bold(f"{heading}:"), *(f"  {line}".rstrip() for line in lines)]
        )

    def command(self, heading: str, words: Iterable[str]) -> None:
        """A heading with a shell command, continued over lines between its words."""
        lines = [""]
        for word in words:
            if lines[-1] and layout.cells(lines[-1]) + 1 + layout.cells(word) > self._width - 4:
                lines[-1] += " \\"
                lines.append("  ")
            lines[-1] += word if not lines[-1].strip() else f" {word}"
        self.verbatim(heading, lines)
