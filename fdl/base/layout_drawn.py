"""The help pages of commands, presets and run commands: their tables are drawn by rich.

A terminal gets panels, as Typer draws them. A pipe gets the same words below plain headings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fdl.base import layout as layout, output

if TYPE_CHECKING:
    from collections.abc import Iterable

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
