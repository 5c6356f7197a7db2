"""Every page and message as it stands on a terminal, against the pictures in ``screens/``.

Look at a change with your own eyes before you accept it:

    UPDATE_SCREENS=1 pytest tests/fdl/test_screens.py && git diff tests/fdl/screens
"""

import os
from pathlib import Path

import pytest

from fdl import __version__
from fdl.base.layout import cells
from fdl.cli.builtin_table import TABLE
from fdl.manifest.builtins import PROGRAMS
from tests.fdl import screen

SCREENS = Path(__file__).parent / "screens"
UPDATE = os.environ.get("UPDATE_SCREENS") == "1"
WIDTHS = (80, 120)
WIDEST = 100

# Without these the screen would depend on who runs the tests.
QUIET = {
    "CI": "1", "NO_COLOR": "", "FORCE_COLOR": "", "FLODL_COLOR": "", "FLODL_VERBOSITY": "",
    "FDL_ENV": "", "COLUMNS": "", "HF_TOKEN": "",
}  # fmt: skip

PAGES = {
    "project": "--help",
    "project-all": "--help all",
    "project-env": "--env ci --help",
    "path": "train --help",
    "path-group": "train --help engine",
    "path-without-entry": "tools --help",
    "preset": "train quick --help",
    "preset-long-line": "train long --help",
    "run": "test --help",
    "run-many-lines": "lint --help",
    "run-nested": "tools convert --help",
    "list": "list",
}
ERRORS = {
    "error-unknown-command": "tets",
    "error-unknown-child": "tools repotr",
    "error-unknown-built-in": "config shwo",
    "error-unknown-group": "train --help engin",
    "error-missing-argument": "init",
    "error-unknown-option": "config show --jsno",
    "error-arguments-before-separator": "test -k slow",
    "error-broken-command": "broken",
    "error-preset-without-entry": "stray",
    "error-contradicting-flags": "--ansi --no-ansi test",
}
# A quoted word of a command line stays whole, so that the line can be copied.
COPIED = ("preset-long-line",)
ALONE = {"no-project": "--help", "error-no-project": "test"}

PANELS = dict.fromkeys(map(ord, "╭╮╰╯│─:"), " ")
MOST_LINES_OF_AN_ERROR = 6


def built_ins():
    """A page for every built-in command, and for those below it."""
    for name in TABLE:
        # A program's own page shows whatever that program takes.
        if name not in PROGRAMS:
            yield "-".join(("built-in", *name.split())), f"{name} --help"


EVERYTHING = {**PAGES, **ERRORS, **ALONE, **dict(built_ins())}


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    """A project that has one of everything, and a folder without any."""
    import shutil

    folder = tmp_path_factory.mktemp("screens")
    shutil.copytree(Path(__file__).parents[1] / "projects" / "gallery", folder / "gallery")
    (folder / "empty").mkdir()
    return folder


def place(gallery, name):
    return gallery / ("empty" if name in ALONE else "gallery")


def normal(text):
    """The text without what changes with every release."""
    return text.replace(__version__, "VERSION")


@pytest.mark.parametrize("name", EVERYTHING)
def test_the_screen_shows_what_the_picture_does(gallery, name):
    for columns in WIDTHS:
        code, raw = screen.typed(
            *EVERYTHING[name].split(), cwd=place(gallery, name), columns=columns, env=QUIET
        )
        assert (code != 0) is name.startswith("error")
        shown = screen.lines(raw, columns)
        if name.startswith("error"):
            assert len(shown) <= MOST_LINES_OF_AN_ERROR
        if not name.startswith("error") and name not in COPIED:
            # Nothing was wrapped by the terminal: what fdl wrote is what stands there.
            assert screen.plain(raw).splitlines() == shown
            assert max(map(cells, shown)) <= (columns if name == "list" else min(columns, WIDEST))
        picture = f"$ fdl {EVERYTHING[name]}\n{normal(screen.picture(raw, columns))}"
        file = SCREENS / f"{name}.{columns}.txt"
        if UPDATE:
            file.parent.mkdir(exist_ok=True)
            file.write_text(picture, encoding="utf-8")
        assert picture == file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    [
        # All pages of built-in commands are written in one way.
        pytest.param(name, marks=pytest.mark.slow if name.startswith("built-in") else ())
        for name in sorted(EVERYTHING.keys() - {"list"})
    ],
)
def test_a_pipe_gets_the_same_words_without_colour(gallery, fdl, name):
    done = fdl(*EVERYTHING[name].split(), cwd=place(gallery, name), env=QUIET)
    _, raw = screen.typed(
        *EVERYTHING[name].split(),
        cwd=place(gallery, name),
        columns=80,
        env={**QUIET, "NO_COLOR": "1"},
    )
    assert "\x1b" not in done.out + done.err + raw
    assert not (done.out and done.err), "one stream for the page, none for half of it"
    text = done.out or done.err
    if "╭" in raw:
        # A terminal shows panels where a pipe has headings, and breaks lines elsewhere.
        assert sorted(text.translate(PANELS).split()) == sorted(raw.translate(PANELS).split())
    else:
        assert text.splitlines() == raw.splitlines()
    assert not set(text) & set("╭╮╰╯│─")


def test_no_secret_is_on_any_picture():
    pictures = list(SCREENS.glob("*.txt"))
    assert len(pictures) >= len(PAGES)
    for file in pictures:
        assert "not-to-be-shown" not in file.read_text(encoding="utf-8")


def test_there_is_no_picture_of_what_does_not_exist():
    expected = {f"{name}.{columns}.txt" for name in EVERYTHING for columns in WIDTHS}
    assert {file.name for file in SCREENS.iterdir()} == expected
