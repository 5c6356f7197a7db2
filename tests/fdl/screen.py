"""What a command leaves on a terminal, rendered by a terminal emulator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import pyte

from tests.fdl.terminal import Terminal

_LINES = 300
_STYLES_BELOW = "--- styles: b bold, d dim, c cyan, R bold red, Y bold yellow"
_STYLE_LETTERS = {
    (True, False, "default"): "b",
    (False, True, "default"): "d",
    (False, False, "cyan"): "c",
    (True, False, "red"): "R",
    (True, False, "brown"): "Y",
    (False, False, "default"): ".",
}


class _Faint(pyte.Screen):
    """A screen that tells faint text, which pyte itself ignores, by its underline."""

    def select_graphic_rendition(self, *attributes: int, **more: bool) -> None:
        super().select_graphic_rendition(*(4 if one == 2 else one for one in attributes), **more)


def typed(
    *args: str, cwd: Path, columns: int, env: Mapping[str, str], rows: int = _LINES
) -> tuple[int, str]:
    """Type ``fdl ARGS`` on a terminal of that size; exit code and the raw text it received."""
    # A test runner may tell its workers a width of its own.
    own = {"COLUMNS": "", **env}
    with Terminal(*args, cwd=cwd, env=own, size=(rows, columns)) as terminal:
        return terminal.finish(), terminal.text


def lines(raw: str, columns: int) -> list[str]:
    """What a person sees."""
    return _shown(_rendered(raw, columns))


def picture(raw: str, columns: int) -> str:
    """The same with a map of the styles below it: a letter for every styled character."""
    screen = _rendered(raw, columns)
    text = _shown(screen)
    styles = [_styles(screen, row) for row in range(len(text))]
    while styles and not styles[-1]:
        styles.pop()
    return "\n".join([*text, _STYLES_BELOW, *styles]) + "\n"


def plain(text: str) -> str:
    """Text without any escape sequence."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@lru_cache(1)
def _rendered(raw: str, columns: int) -> pyte.Screen:
    # As many lines as it can take: a screen of many empty ones is slow to read.
    most = raw.count("\n") + len(raw) // columns + 2
    screen = _Faint(columns, min(most, _LINES))
    pyte.Stream(screen).feed(raw)
    return screen


def _shown(screen: pyte.Screen) -> list[str]:
    # pyte puts an empty cell behind a wide character; `display` leaves it out.
    rows = [row.rstrip() for row in screen.display]
    while rows and not rows[-1]:
        rows.pop()
    return rows


def _styles(screen: pyte.Screen, row: int) -> str:
    letters = ""
    for column in range(screen.columns):
        cell = screen.buffer[row][column]
        if cell.data == " ":
            letters += " "
        elif cell.data:
            letters += _STYLE_LETTERS[cell.bold, cell.underscore, cell.fg]
    return letters.rstrip().strip(".") and letters.rstrip()
