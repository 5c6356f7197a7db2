"""The two consoles: what a terminal, a pipe and the variables of the user make of them."""

import io
import os
import subprocess
import sys

import pytest
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fdl.base import output
from fdl.base.tables import headed, lines, pairs, table
from tests.fdl import screen
from tests.fdl.terminal import Terminal
from tests.rows import each_row

VARIABLES = ("COLUMNS", "FLODL_COLOR", "FORCE_COLOR", "NO_COLOR", "TERM")


class Stream(io.StringIO):
    """A stream that may say that it is a terminal."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def stdout(monkeypatch):
    """Replace standard output by a terminal or a pipe, under the given variables and flag."""

    def replace(*, terminal, color=None, **variables):
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in {"TERM": "xterm", **variables}.items():
            monkeypatch.setenv(name, value)
        stream = Stream(terminal=terminal)
        monkeypatch.setattr(sys, "stdout", stream)
        output.configure(color, quiet=False)
        return stream

    yield replace
    output.configure(None, quiet=False)


# Flag, variables, whether a terminal is coloured, whether a pipe is.
COLOUR = [
    (None, {}, True, False),
    (True, {"NO_COLOR": "1", "FLODL_COLOR": "never", "TERM": "dumb"}, True, True),
    (False, {"FORCE_COLOR": "1", "FLODL_COLOR": "always"}, False, False),
    (None, {"FLODL_COLOR": "always", "NO_COLOR": "1"}, True, True),
    (None, {"FLODL_COLOR": "never", "FORCE_COLOR": "1"}, False, False),
    (None, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False),
    (None, {"NO_COLOR": "", "FORCE_COLOR": "1"}, True, True),
    (None, {"FORCE_COLOR": "0"}, True, True),
    (None, {"TERM": "dumb"}, False, False),
    (None, {"TERM": "dumb", "FORCE_COLOR": "1"}, True, True),
]


@each_row("terminal", [True, False], ids=["terminal", "pipe"])
@each_row(("color", "variables", "on_terminal", "in_pipe"), COLOUR)
def test_flag_variables_and_stream_decide_about_colour(
    stdout, color, variables, on_terminal, in_pipe, terminal
):
    stream = stdout(terminal=terminal, color=color, **variables)
    output.show(Text("red", style="bold red"))
    coloured = on_terminal if terminal else in_pipe
    assert stream.getvalue() == ("\x1b[1;31mred\x1b[0m\n" if coloured else "red\n")
    assert output.palette(stream).on is coloured


@each_row(
    ("terminal", "term", "interactive"),
    [(True, "xterm", True), (True, "dumb", False), (True, "DUMB", False), (False, "xterm", False)],
)
def test_only_a_terminal_that_can_move_its_cursor_is_drawn_over(
    stdout, terminal, term, interactive
):
    stream = stdout(terminal=terminal, TERM=term, FORCE_COLOR="1")
    assert output.is_screen(stream) is interactive
    assert output.console().is_interactive is interactive


def test_rich_does_not_read_the_variables_in_a_way_of_its_own(stdout):
    stdout(terminal=False, TTY_COMPATIBLE="1", TTY_INTERACTIVE="1", FORCE_COLOR="1")
    assert not output.console().is_terminal
    assert not output.console().is_interactive


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_a_terminal_is_filled_up_to_its_edge(stdout, columns):
    stream = stdout(terminal=True, color=False, COLUMNS=columns)
    output.show(Panel("words " * 100))
    assert {len(line) for line in stream.getvalue().splitlines()} == {int(columns)}


@pytest.mark.parametrize("columns", [{}, {"COLUMNS": "40"}, {"COLUMNS": "0"}])
def test_a_pipe_gets_every_value_whole_and_no_blanks_behind_it(stdout, columns):
    stream = stdout(terminal=False, **columns)
    long = "word " * 200 + "end"
    output.show(table([("a", long), ("bb", "x")], ("NAME", "TEXT")))
    assert stream.getvalue() == f"NAME  TEXT\na     {long}\nbb    x\n"


def test_wide_characters_line_up(stdout):
    stream = stdout(terminal=False)
    output.show(table([("学习", "1"), ("e\u0301", "10")], right=(1,)))
    assert stream.getvalue() == "学习   1\ne\u0301     10\n"


@pytest.mark.parametrize("heads", [(), ("name", "n", "更多")])
@pytest.mark.parametrize("text", ["–", "two  words", "a\tb", "one\ntwo", ""])
def test_a_table_in_a_pipe_is_the_one_that_rich_draws(stdout, heads, text):
    stdout(terminal=False)
    rows = [("日本", "1", text), ("", "22", "x"), ("é", "", "")]
    made = table(rows, heads, right=(1,))
    drawn = output.drawn(headed([("Rows:", made)]))
    made.__class__ = Table
    assert drawn == output.drawn(headed([("Rows:", made)]))


def test_the_last_column_is_cut_at_the_edge_of_a_terminal(stdout):
    stream = stdout(terminal=True, color=False, COLUMNS="20")
    output.show(table([("name", "a text that is too long")]))
    assert stream.getvalue() == "name  a text that i…\n"


def test_a_column_that_may_be_wrapped_continues_below_itself(stdout):
    stream = stdout(terminal=True, color=False, COLUMNS="20")
    output.show(pairs([("Path", "a/path/that/is/too/long/for/it"), ("CPU", "two words of it")]))
    assert stream.getvalue().splitlines() == [
        "Path  a/path/that/is",
        "      /too/long/for/",
        "      it",
        "CPU   two words of",
        "      it",
    ]


def test_sections_have_a_blank_line_between_them(stdout):
    stream = stdout(terminal=False)
    output.show(headed([("", "first"), ("Second", table([("a", "b")]))]))
    assert stream.getvalue() == "first\n\nSecond\n  a  b\n"


def test_lines_to_copy_stay_whole_on_a_narrow_terminal(stdout):
    stream = stdout(terminal=True, color=False, COLUMNS="20")
    output.show(lines("  a command that is longer than the line"))
    assert stream.getvalue() == "  a command that is longer than the line\n"


def test_nothing_in_a_text_is_taken_for_markup(stdout):
    stream = stdout(terminal=True, color=True)
    output.show("[OPTIONS] :smile: [bold]x[/bold] 12")
    assert stream.getvalue() == "[OPTIONS] :smile: [bold]x[/bold] 12\n"


PROGRAM = """
import sys
from fdl.base import output
from fdl.base.tables import table
output.show(table([("größe", "大"), ("x", "y")]))
output.error("größer")
"""


def test_a_stream_that_cannot_say_a_character_gets_it_escaped():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0
    assert done.stdout == "gr\\xf6\\xdfe  \\u5927\nx      y\n"
    assert done.stderr == "error: gr\\xf6\\xdfer\n"


LIGHT = """
import sys
from fdl.base import output
output.error("wrong", hint="right")
output.see("fdl x [OPTIONS]", "fdl x")
output.warning("careful")
output.note("by the way")
sys.exit("rich" in sys.modules)
"""


def test_messages_do_not_import_rich():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "error: wrong",
        "hint: right",
        "Usage: fdl x [OPTIONS]",
        "see fdl x --help",
        "warning: careful",
        "by the way",
    ]


def test_a_dumb_terminal_gets_words_alone(project):
    folder = project(
        {"fdl.yml": "commands: {t: {run: make, description: Make it}, p: }", "p/fdl.yml": ""}
    )
    for typed in (("list",), ("t", "--help"), ("tt",)):
        with Terminal(*typed, cwd=folder, env={"TERM": "dumb"}) as terminal:
            terminal.finish()
        assert terminal.text.isascii()
        assert "\x1b" not in terminal.text


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_panels_end_at_the_edge_of_the_terminal(fixture_project, columns):
    folder = fixture_project("gallery")
    code, raw = screen.typed("train", "--help", cwd=folder, columns=columns, env={})
    assert code == 0
    shown = screen.lines(raw, columns)
    edges = {len(line) for line in shown if line.startswith(("╭", "╰"))}
    assert edges == {min(columns, 100)}
    assert max(map(len, shown)) == min(columns, 100)


@each_row(
    ("text", "shown"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\x1b]0;title\x07b", "a\\x1b]0;title\\x07b"),
        ("a\x1b[8mhidden\x1b[0m", "a\\x1b[8mhidden\x1b[0m"),
        ("\x1b[1;31merror\x1b[0m", "\x1b[1;31merror\x1b[0m"),
        ("a\rb\x08\x9b2J", "a\\x0db\\x08\\x9b2J"),
        ("lines\n\ttabs é", "lines\n\ttabs é"),
    ],
)
def test_control_characters_are_shown_and_not_sent(text, shown):
    from fdl.base.output import visible

    assert visible(text) == shown


def test_escapes_of_a_manifest_reach_no_terminal(project, fdl):
    project(
        {
            "fdl.yml": 'description: "p\\e[2Jq"\n'
            'commands: {t: {description: "x\\e]0;y\\a", run: "echo \\e[8m"}, "u\\e[2J": {run: x}}\n'
        }
    )
    for call in (("--help",), ("list",), ("config", "show"), ("t", "--help"), ("--dry-run", "t")):
        session = fdl(*call)
        assert session.exit == 0
        assert "\x1b" not in session.out + session.err
        assert "\a" not in session.out
    assert "\x1b" not in fdl("nope\x1b[2J").err
