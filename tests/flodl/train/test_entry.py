from __future__ import annotations

import os
import subprocess
from textwrap import dedent

import pytest

from flodl.data import DataLoader
from flodl.errors import DataError, FlodlError
from flodl.train import entry
from tests import fork_server
from tests.rows import each_row


def raising(error: BaseException) -> object:
    raise error


@each_row(("result", "code"), [(None, 0), (0, 0), (3, 3), (True, 0), ("text", 0), (object(), 0)])
def test_only_an_int_is_an_exit_code(result: object, code: int) -> None:
    assert entry(lambda _: result, None) == code


def test_the_arguments_reach_the_program() -> None:
    seen: list[int] = []
    assert entry(seen.append, 7) == 0
    assert seen == [7]


@each_row("kind", [FlodlError, DataError])
def test_what_a_user_can_cause_keeps_its_lines_and_has_no_traceback(
    kind: type[FlodlError], capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry(raising, kind("no data\n  in the file")) == 1
    assert capsys.readouterr() == ("", "error: no data\n  in the file\n")


def test_a_value_refused_by_our_own_checks_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry(lambda n: DataLoader([1, 2], n), 0) == 1
    assert capsys.readouterr().err == "error: batch_size=0: it must be an integer of at least 1\n"


@each_row("error", [ValueError("bug"), KeyError("bug"), RuntimeError("bug")])
def test_a_bug_of_the_program_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error), match="bug"):
        entry(raising, error)


def test_a_value_error_of_the_standard_library_keeps_its_traceback() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        entry(int, "seven")


def test_ctrl_c_exits_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry(raising, KeyboardInterrupt()) == 130
    assert entry(raising, KeyboardInterrupt("stopped at step 3")) == 130
    assert capsys.readouterr().err == "interrupted\ninterrupted: stopped at step 3\n"
    stop = KeyboardInterrupt("stopped at step 4")
    stop.add_note("continue with: fdl train --resume last")
    assert entry(raising, stop) == 130
    assert capsys.readouterr().err == (
        "interrupted: stopped at step 4\ncontinue with: fdl train --resume last\n"
    )


def test_of_several_ranks_the_first_tells_why_they_stop(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert entry(raising, KeyboardInterrupt("stopped at step 3")) == 130
    assert capsys.readouterr().err == ""


def test_an_exit_of_the_program_passes_through() -> None:
    with pytest.raises(SystemExit) as leaving:
        entry(raising, SystemExit(5))
    assert leaving.value.code == 5


def test_a_closed_pipe_is_quiet() -> None:
    program = dedent(
        """
        import sys
        from flodl.train import entry

        def main(count):
            for number in range(count):
                print(number)

        sys.exit(entry(main, 1_000_000))
        """
    )
    child = subprocess.Popen(
        [fork_server.torch_program(os.environ), "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.readline() == "0\n"
    child.stdout.close()
    with child.stderr:
        assert child.stderr.read() == ""
    assert child.wait(timeout=60) == 141
