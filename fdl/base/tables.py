"""Tables and headed sections, drawn by rich: the same text on a terminal and in a pipe.

They have no lines and no boxes, so a script has nothing to strip. In a pipe every value is whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fdl.base.masking import KNOWN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from rich.console import RenderableType

TROUBLE = "bold red"
"""Style of what is broken or has failed."""


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
    drawn = Table(
        box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=bool(heads), header_style="bold"
    )
    for place in range(count):
        drawn.add_column(
            heads[place] if heads else "",
            justify="right" if place in right else "left",
            no_wrap=place not in (wrap or (count - 1,)),
            overflow="fold" if place in wrap else "ellipsis",
        )
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
