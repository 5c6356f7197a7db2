"""The status before torch is imported, and the line of an epoch at every width."""

from __future__ import annotations

import io
import os
import sys
from textwrap import dedent

import pytest

from flodl import log, terminal
from flodl.terminal import BarLine, style_of
from tests.flodl.terminal_session import Session, last
from tests.fork_server import FORGET
from tests.rows import each_row

FULL = BarLine(
    "epoch  3/10",
    "150/450",
    1 / 3,
    ["loss=0.1235", "accuracy=0.9123"],
    "320 samples/s",
    "ETA 5m 45s",
)


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _normal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flodl.log._level", None)
    monkeypatch.setenv("FLODL_VERBOSITY", "normal")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("FLODL_COLOR", raising=False)


def fields(line: BarLine, width: int) -> list[str]:
    return [text for text, _ in line.fitted(width)[1]]


@each_row(
    ("width", "shown"),
    [
        (119, ["loss=0.1235", "accuracy=0.9123", "320 samples/s", "ETA 5m 45s"]),
        (79, ["loss=0.1235", "320 samples/s", "ETA 5m 45s"]),
        (59, ["loss=0.1235", "ETA 5m 45s"]),
        (39, ["ETA 5m 45s"]),
        (31, []),
    ],
)
def test_the_remaining_time_is_dropped_last(width: int, shown: list[str]) -> None:
    assert fields(FULL, width) == shown


@each_row("width", range(20, 130))
def test_a_line_is_never_wider_than_the_terminal(width: int) -> None:
    bar, kept = FULL.fitted(width)
    total = len(FULL.head) + 2 + len(FULL.steps) + sum(2 + len(text) for text, _ in kept)
    assert total + (bar + 2 if bar else 0) <= width
    assert bar == 0 or 4 <= bar <= 24


def test_a_metric_of_wide_letters_counts_its_columns() -> None:
    wide = BarLine("epoch 1/1", "1/2", None, ["損失=0.1"], "", "ETA 1s")
    assert fields(wide, 9 + 2 + 3 + 8 + 10) == ["損失=0.1", "ETA 1s"]
    assert fields(wide, 9 + 2 + 3 + 8 + 9) == ["ETA 1s"]


def test_a_note_takes_the_place_of_numbers() -> None:
    noted = BarLine("epoch 1/3", "0/45", 0.0, note="reading data")
    assert fields(noted, 79) == ["reading data"]


def test_the_style_follows_the_stream_the_terminal_and_the_verbosity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert style_of(Terminal()) == "bar"
    assert style_of(io.StringIO()) == "lines"
    assert style_of(None) == "none"
    monkeypatch.setenv("FLODL_COLOR", "never")
    assert style_of(Terminal()) == "lines"
    monkeypatch.delenv("FLODL_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert style_of(Terminal()) == "lines"
    monkeypatch.setattr("flodl.log._level", log.Verbosity.QUIET)
    assert style_of(Terminal()) == "none"


def test_a_second_training_of_a_process_does_not_draw() -> None:
    outer = terminal.open_display(Terminal(), "bar")
    try:
        assert outer is not None
        assert terminal.open_display(Terminal(), "bar") is None
        terminal.close_display(None)
        assert terminal.open_display(Terminal(), "bar") is None
    finally:
        terminal.close_display(outer)
    again = terminal.open_display(Terminal(), "bar")
    assert again is not None
    terminal.close_display(again)


def test_a_terminal_that_is_gone_is_let_go() -> None:
    stream, own = Terminal(), sys.stdout
    display = terminal.open_display(stream, "bar")
    assert display is not None
    display.tell("reading data")
    stream.close()
    display.show(FULL)
    terminal.close_display(display)
    assert sys.stdout is own


# An import of torch that waits: what is on the screen then was there before it. The fork of a
# process that has imported torch gets it from there.
SLOW_TORCH = FORGET + dedent(
    """
    import builtins
    real, there = builtins.__import__, sys.modules.pop("torch", None)

    def slow(name, *rest):
        if name == "torch" and "torch" not in sys.modules:
            gate()
            if there:
                sys.modules["torch"] = there
        return real(name, *rest)

    builtins.__import__ = slow
    print("begin", flush=True)
    import flodl
    print("end", flush=True)
    """
)

posix_only = pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")


@posix_only
@pytest.mark.parametrize(("columns", "torch"), [(40, False), (120, True)])
def test_the_import_of_torch_is_told_before_it_begins_and_leaves_no_trace(
    columns: int, torch: bool
) -> None:
    with Session(SLOW_TORCH, columns, torch=torch) as session:
        assert session.until(last("importing")) == ["begin", "importing torch"]
        session.step()
        assert session.end() == 0
        assert session.screen() == ["begin", "end"]


@posix_only
def test_a_terminal_that_cannot_erase_gets_a_plain_line() -> None:
    with Session(SLOW_TORCH, 80, env={"TERM": "dumb"}) as session:
        session.until(last("importing"))
        session.step()
        assert session.end() == 0
        assert session.text.splitlines() == ["begin", "importing torch", "end"]


@posix_only
@pytest.mark.parametrize(
    "env", [{"FLODL_VERBOSITY": "quiet"}, {"RANK": "1"}, {"SLURM_PROCID": "3"}]
)
def test_quiet_programs_and_other_ranks_tell_nothing(env: dict[str, str]) -> None:
    with Session(SLOW_TORCH, 80, env=env) as session:
        session.step()
        assert session.end() == 0
        assert session.text.splitlines() == ["begin", "end"]


@posix_only
def test_without_a_terminal_on_stdout_nothing_is_told() -> None:
    with Session(SLOW_TORCH, 80, stdout=False) as session:
        session.step()
        assert session.end() == 0
        assert session.text == ""
