"""A long job's progress: a bar on a terminal, a line now and then elsewhere."""

import os
import signal
import sys

import pytest

from fdl.base import output, progress
from fdl.base.progress import Progress
from tests.fdl import screen
from tests.fdl.terminal import Terminal

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"

# A terminal of a given size, and what a download does on it.
DOWNLOAD = """
import fcntl, struct, sys, termios, time
fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
from fdl.base import output
from fdl.base.progress import Progress
with Progress("libtorch 2.10.0 cu128") as job:
    job.start(200_000_000)
    job.update(50_000_000)
    output.note("a note in the middle")
    time.sleep(0.2)
    job.update(100_000_000)
    FURTHER
print("done")
"""


def download(tmp_path, columns=80, further="pass", **variables):
    """Run a download on a terminal that wide."""
    program = DOWNLOAD.replace("COLUMNS", str(columns)).replace("FURTHER", further)
    return Terminal(cwd=tmp_path, program=program, env={"COLUMNS": "", **variables})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that have passed, in a list so that a test can turn them."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_pipe_gets_a_line_every_ten_seconds_and_one_at_the_end(clock, capsys):
    with Progress("libtorch cpu") as job:
        job.start(200_000_000)
        for second in range(1, 22):
            clock[0] = second
            job.update(second * 8_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "libtorch cpu: 80.0 of 200.0 MB 40%, 8.0 MB/s, 0:00:15 left",
        "libtorch cpu: 160.0 of 200.0 MB 80%, 8.0 MB/s, 0:00:05 left",
        "libtorch cpu: 168.0 of 200.0 MB 84%, 8.0 MB/s, 0:00:04 left",
    ]


def test_a_job_that_fails_in_a_pipe_does_not_claim_an_end(capsys):
    def fail() -> None:
        with Progress("x", 10) as job:
            job.update(5)
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        fail()
    assert capsys.readouterr().err == ""


def test_what_an_earlier_call_did_counts_as_done_but_not_as_fast(clock, capsys):
    with Progress("x") as job:
        job.start(100_000_000, done=50_000_000)
        clock[0] = 10
        job.update(60_000_000)
    assert "60.0 of 100.0 MB 60%, 1.0 MB/s, 0:00:40 left" in capsys.readouterr().err


def test_an_unknown_total_shows_the_amount_alone(clock, capsys):
    with Progress("x") as job:
        clock[0] = 3
        job.update(7_200_000)
    assert capsys.readouterr().err == "x: 7.2 MB, 2.4 MB/s\n"


def test_a_long_wait_is_told_in_hours(clock):
    job = Progress("x", 10_000_000_000)
    clock[0] = 1
    job.update(1_000_000)
    assert job.text().endswith("2:46:39 left")


def test_steps_are_counted(capsys):
    with Progress("build", 48, unit="steps") as job:
        job.update(12)
    assert capsys.readouterr().err == "build: 12/48 steps 25%\n"


def test_quiet_mutes_it(clock, capsys):
    output.configure(None, quiet=True)
    try:
        with Progress("x", 2) as job:
            clock[0] = 11
            job.update(1)
    finally:
        output.configure(None, quiet=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_a_terminal_gets_one_line_that_is_drawn_over(tmp_path, columns):
    with download(tmp_path, columns) as terminal:
        assert terminal.finish() == 0
    note, bar, done = screen.lines(terminal.text, columns)
    assert (note, done) == ("a note in the middle", "done")
    assert bar.startswith("libtorch 2.10.0 cu128 ")
    assert " 50% " in bar
    assert ("100.0/200.0 MB" in bar) is (columns >= 70)
    assert ("━" in bar) is (columns >= 70)
    assert bar.split()[-1].count(":") == 1


def test_a_build_shows_its_steps_on_a_terminal(tmp_path):
    program = (
        "from fdl.base.progress import Progress\n"
        "with Progress('build', 48, unit='steps') as job:\n"
        "    job.update(12)\n"
    )
    with Terminal(cwd=tmp_path, program=program, env={"COLUMNS": "80"}) as terminal:
        assert terminal.finish() == 0
    (bar,) = screen.lines(terminal.text, 80)
    assert "25% 12/48 steps" in bar


@pytest.mark.parametrize(
    ("further", "code"), [("raise SystemExit(3)", 3), ("raise KeyboardInterrupt", None)]
)
def test_the_cursor_is_there_after_an_error_and_after_ctrl_c(tmp_path, further, code):
    with download(tmp_path, further=further) as terminal:
        ended = terminal.finish()
    assert ended == code if code is not None else ended != 0
    assert terminal.text.rindex(SHOW_CURSOR) > terminal.text.rindex(HIDE_CURSOR)
    assert "50%" in terminal.text


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_the_cursor_is_there_after_a_kill(tmp_path):
    with download(tmp_path, further='print("now", flush=True); time.sleep(60)') as terminal:
        terminal.read_until("now")
        os.kill(terminal.pid, signal.SIGKILL)
        terminal.finish()
    assert terminal.text.rindex(SHOW_CURSOR) > terminal.text.rindex(HIDE_CURSOR)


def test_a_dumb_terminal_gets_lines(tmp_path):
    with download(tmp_path, TERM="dumb") as terminal:
        assert terminal.finish() == 0
    assert "\x1b" not in terminal.text
    (line,) = [one for one in terminal.text.splitlines() if one.startswith("libtorch")]
    assert line.startswith("libtorch 2.10.0 cu128: 100.0 of 200.0 MB 50%")


def test_standard_output_is_left_alone_while_a_bar_is_drawn(tmp_path):
    program = (
        "import os, sys\n"
        "sys.stdout = open('out', 'w')\n"
        "from fdl.base.progress import Progress\n"
        "with Progress('x', 2, unit='steps') as job:\n"
        "    print('export A=1')\n"
        "sys.stdout.close()\n"
        "os._exit(0)\n"
    )
    with Terminal(cwd=tmp_path, program=program) as terminal:
        assert terminal.finish() == 0
    assert (tmp_path / "out").read_text() == "export A=1\n"
    assert "export" not in terminal.text
