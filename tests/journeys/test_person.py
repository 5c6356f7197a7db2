"""The person of the journeys: what a shell keeps, what is seen, and that nothing stays."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.journeys.person import CTRL_C, Person, clean, copied


@pytest.fixture
def somebody(tmp_path: Path) -> Iterator[Person]:
    (tmp_path / "home/work").mkdir(parents=True)
    person = Person(tmp_path / "home", tmp_path / "home/work")
    yield person
    person.leave(0)


def test_the_folder_and_the_variables_are_there_for_the_next_line(somebody):
    somebody.type("mkdir first && cd first && export COLOUR='two words'")
    typed = somebody.type('pwd; echo "$COLOUR"; tty')
    folder, colour, terminal = typed.visible
    assert folder == str(somebody.home / "work/first")
    assert colour == "two words"
    assert terminal.startswith("/dev/")
    assert somebody.run("pwd").out == f"{folder}\n"
    assert somebody.run("tty", exits=1).out == "not a tty\n"


def test_nothing_of_the_developer_is_there(somebody, monkeypatch):
    for name in ("VIRTUAL_ENV", "PYTHONPATH", "CI", "FDL_ENV", "FLODL_CACHE_DIR"):
        monkeypatch.setenv(name, "of the developer")
    there = clean(somebody.home)
    assert "of the developer" not in there.values()
    assert there["HOME"] == str(somebody.home)
    typed = somebody.type("command -v fdl || echo no fdl; command -v python3; env")
    assert typed.visible[0] == "no fdl"
    assert not {"VIRTUAL_ENV", "CI"} & {line.partition("=")[0] for line in typed.visible}


def test_questions_are_answered_and_exit_codes_told(somebody):
    typed = somebody.type(
        'read -p "Sure? [Y/n] " word; echo "you said $word"; exit 3', ("[Y/n]", "n\n"), exits=3
    )
    assert typed.visible == ["Sure? [Y/n] n", "you said n"]
    with pytest.raises(AssertionError, match="`echo oh; false` ended with 1:\noh"):
        somebody.type("echo oh; false")


def test_ctrl_c_reaches_the_program_and_not_what_is_no_longer_there(somebody):
    # One program says it and waits: between two, bash itself has the terminal, and ignores Ctrl-C.
    with somebody.start("sh -c 'echo begun; exec sleep 100'") as sleeping:
        sleeping.wait_for("begun")
        sleeping.press(CTRL_C)
        assert sleeping.finish().exit == 130


def test_a_closed_terminal_ends_its_programs(somebody):
    began = time.monotonic()
    with somebody.start("echo begun; sleep 100") as sleeping:
        sleeping.wait_for("begun")
    assert time.monotonic() - began < 50
    assert somebody.leave(0) == []


def test_a_word_that_does_not_come_is_a_failure_with_what_came(somebody):
    with (
        somebody.start("echo something else") as running,
        pytest.raises(AssertionError, match="ended without 'a word':\nsomething else"),
    ):
        running.wait_for("a word")
    with pytest.raises(AssertionError, match="still there"):
        somebody.type("sleep 100", limit=0.5)
    assert somebody.leave(0) == []


def test_a_program_that_is_left_is_named_and_ended(somebody):
    left = f"sleep 100.{os.getpid()}"  # nobody else on this machine runs it
    somebody.type(f"(setsid {left} &)")
    assert somebody.leave(0) == [left]
    assert not [one for one in psutil.process_iter() if left in " ".join(_argv(one))]


def _argv(program: psutil.Process) -> list[str]:
    try:
        return program.cmdline()
    except psutil.Error:
        return []


@pytest.mark.slow
def test_a_copied_environment_is_its_own(somebody, tmp_path):
    environment = tmp_path / "one"
    somebody.type(f"python3 -m venv {environment} && . {environment}/bin/activate", limit=120)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "small.py").write_text("where = __file__\n")
    copy = copied(environment, tmp_path / "two")
    somebody.activate(copy)
    asked = "import small, sys; print(small.where, sys.prefix)"
    where, prefix = somebody.run(f"python -c '{asked}'").out.split()
    assert Path(where).is_relative_to(copy)
    assert prefix == str(copy)
    assert str(copy) in somebody.run("pip --version").out
    assert (packages / "small.py").stat().st_nlink == 2
