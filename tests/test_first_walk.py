"""The first minutes of a newcomer, typed on two terminals: 80 columns by 24 lines, and 100 by 30.

A transcript of each is kept, with names for what differs from run to run. Read a change before
you accept it:

    UPDATE_SCREENS=1 pytest -m slow tests/test_first_walk.py && git diff tests/screens
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pyte
import pytest

from fdl import __version__
from tests.fdl import screen
from tests.session import Answer, Session
from tests.test_readme import block

# Journeys and the tests of single commands find most of what could go wrong here.
pytestmark = pytest.mark.slow

TRANSCRIPTS = Path(__file__).parent / "screens"
SIZES = [(80, 24), (100, 30)]
"""Columns and lines."""
UPDATE = os.environ.get("UPDATE_SCREENS") == "1"

BEGINNING = ["fdl init demo", "cd demo", "fdl --help"]
README = [
    line.removeprefix("$ ").partition("  #")[0].rstrip()
    for line in block("console", "why").splitlines()
]
AFTERWARDS = ["fdl runs list"]
ERRORS = {
    "fdl trian quick": "train",
    "fdl train quik": "quick",
    "fdl train quick --learning-rate 1": "fdl train --help",
    "fdl train quick --epochs ten": "fdl train --help",
    "fdl config shwo": "show",
    "fdl why training.lrr train quick": "training.lr",
    "fdl runs show best:acuracy": "accuracy",
    "fdl --env prod train": "prod",
}
"""Slips of a newcomer, and a word of the remedy."""

NAMES = (
    (r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(-\d+)?", "TIME"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?", "TIME"),
    (r"http://[\w.]+:\d+\S*", "http://ADDRESS"),
    (r"\b(\d+h )?(\d+m ?)?\d+(\.\d+)?(ms|s)\b", "N s"),
    (r"(?<![\w:./-])\d+:\d\d(:\d\d)?(?![\d:])", "N s"),
    (r"\d[\d,.]* (samples|steps|batches)/s", r"N \1/s"),
    (r"\b\d+(\.\d+)? ?([kMG]i?)?B\b", "N B"),
    (r"\b(loss|val_loss|accuracy)([= ]+)[\d.]+(e-\d+)?…?", r"\1\2N"),
    (r"(?<![\d.\w])\d+\.\d{4,}(e-\d+)?\b", "N"),
    (r"\b\d+\.\d%", "N%"),
    (r"(?m)^  time: .*$", "  time: N%"),
    # The width of a column follows the length of a temporary path, and a line breaks where a
    # duration has one digit more.
    (r"(?m)^([^#\n]*)\n {15,}# ", r"\1  # "),
    (r"\n {15,}# ", " "),
    (r",\n  (?=runs/)", ", "),
    (r"(?<=\S) {3,}", "  "),
    (r"process \d+", "process N"),
    (r"[━╸╺─]{3,}", "───"),
)
"""What differs from run to run, and what stands in its place."""


@dataclass(frozen=True)
class Walk:
    """Every command of the walk, typed in its order in one terminal."""

    folder: Path
    columns: int
    rows: int
    answers: list[Answer]

    def answer(self, line: str) -> Answer:
        return next(answer for answer in self.answers if answer.line == line)


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def walk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Walk:
    columns, rows = request.param
    folder = tmp_path_factory.mktemp("walk")
    (folder / "home").mkdir()
    session = Session(folder, folder / "home", columns, rows)
    lines = (*BEGINNING, *README, *AFTERWARDS, *ERRORS)
    return Walk(folder, columns, rows, [session.type(line) for line in lines])


def printed(walk: Walk, answer: Answer) -> list[str]:
    """All lines of a command, as a terminal of any height leaves them."""
    return screen.lines(answer.raw, walk.columns)


def transcript(walk: Walk) -> str:
    lines = []
    for answer in walk.answers:
        # A terminal breaks long lines anywhere, also in a time or a path: here they stay whole.
        lines += [f"$ {answer.line}", *screen.lines(answer.raw, 1000), ""]
    text = "\n".join(lines).replace(str(walk.folder), "/home/me").replace(__version__, "VERSION")
    for pattern, name in NAMES:
        text = re.sub(pattern, name, text)
    # Said by development versions only.
    return re.sub(r"flodl VERSION is a development version.*\n", "", text)


@pytest.mark.parametrize("line", [*BEGINNING, *README, *AFTERWARDS])
def test_a_command_of_the_walk_works(walk, line):
    answer = walk.answer(line)
    assert answer.exit == 0, answer.raw


def test_a_training_ends_with_its_result_on_the_screen(walk):
    visible = walk.answer("fdl train quick").visible
    assert any("accuracy" in line for line in visible)
    assert any("report.html" in line for line in visible)


@pytest.mark.parametrize("line", ERRORS)
def test_an_error_and_its_remedy_are_on_the_screen(walk, line):
    answer = walk.answer(line)
    assert answer.exit != 0
    lines = printed(walk, answer)
    begin = next(n for n, row in enumerate(lines) if row.startswith("error: "))
    assert len(lines[begin:]) <= 6, "\n".join(lines)
    # The error is the last thing on the screen, below the command that was typed.
    shown = [row for row in answer.visible if row]
    typed = len(shown) - 1 - shown[::-1].index(f"$ {line}")
    assert shown[typed + 1 :] == [row for row in lines if row]
    assert ERRORS[line] in " ".join(lines[begin:])


def test_no_line_is_wider_than_the_terminal(walk):
    measured = 0
    for answer in walk.answers:
        wide = pyte.Screen(1000, 400)
        pyte.Stream(wide).feed(answer.raw)
        rows = [row.rstrip() for row in wide.display]
        # Command lines, values of a plan and paths of runs stay whole, so that they can be copied.
        whole = answer.line.startswith("fdl --dry-run")
        kept_whole = ("fdl: ", str(walk.folder), "runs/")
        copied = [row for row in rows if any(part in row for part in kept_whole)]
        fitting = [row for row in rows if not whole and row not in copied]
        assert max(map(len, fitting), default=0) <= walk.columns, answer.line
        measured += sum(map(bool, fitting))
    assert measured > 100


def test_the_transcript_is_the_kept_one(walk):
    text = transcript(walk)
    kept = TRANSCRIPTS / f"first-walk-{walk.columns}x{walk.rows}.txt"
    if UPDATE:
        kept.write_text(text, encoding="utf-8")
    assert text == kept.read_text(encoding="utf-8")
