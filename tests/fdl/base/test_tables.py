"""Tables on a terminal: what is drawn without rich looks as rich draws it."""

from __future__ import annotations

import io
import re

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from fdl.base.tables import TROUBLE, table
from tests.rows import each_row

HEADS = ("RUN", "STATE", "TIME")
ROWS = [("a-long-name", Text("failed", style=TROUBLE), "1s"), ("日本", "complete", "10m")]
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class ByRich:
    """A table as rich draws it."""

    def __init__(self, made: Table) -> None:
        self.made = made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return Table.__rich_console__(self.made, console, options)


def drawn(made: Table | ByRich, width: int = 80) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=True, color_system="standard").print(made)
    return stream.getvalue()


@each_row("width", [21, 40, 120])
def test_a_table_on_a_terminal_has_the_lines_that_rich_would_draw(width):
    made = table(ROWS, HEADS, right=(2,))
    ours, theirs = (ESCAPES.sub("", drawn(one, width)) for one in (made, ByRich(made)))
    plain = [[line.rstrip() for line in text.splitlines()] for text in (ours, theirs)]
    assert plain[0] == plain[1]


def test_headings_and_cells_keep_their_styles():
    text = drawn(table(ROWS, HEADS, right=(2,)))
    assert "\x1b[1mRUN\x1b[0m" in text
    assert "\x1b[1;31mfailed\x1b[0m" in text
    assert "\x1b" not in text.splitlines()[2]
