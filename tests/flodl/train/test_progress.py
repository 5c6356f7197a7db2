from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from flodl.train.progress import Progress, ProgressStyle, progress_style


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def begun(style: ProgressStyle, stream: io.StringIO | None = None) -> Progress:
    """Epoch 3 of 10 with 450 batches of 32, 50 of them done before; the clock says 100."""
    progress = Progress(10, style, stream=stream)
    progress.begin(2, steps=450, done=50, batch_size=32, now=100.0)
    return progress


def test_the_line_tells_epoch_step_loss_rate_and_time_to_go() -> None:
    # 100 batches in 10 s: 320 samples/s; 300 + 7 * 450 batches to go are 345 s.
    assert begun("line").text(150, 0.12345, 110.0) == (
        "  epoch  3/10  step 150/450  loss=0.1235  320 samples/s  ETA 5m 45s"
    )


def test_nothing_is_claimed_before_it_is_known() -> None:
    assert begun("line").text(50, None, 100.0) == "  epoch  3/10  step  50/450"


@pytest.mark.parametrize(
    ("samples", "seconds", "shown"),
    [(32, 64.0, "0.50"), (3200, 70.0, "45.7"), (3200, 1.0, "3.20k"), (3200, 0.001, "3.20M")],
)
def test_a_rate_has_three_digits(samples: int, seconds: float, shown: str) -> None:
    line = begun("line").text(50 + samples // 32, None, 100.0 + seconds)
    assert f"  {shown} samples/s  " in line


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (80, "  epoch  3/10  step 150/450  loss=0.1235  320 samples/s  ETA 5m 45s"),
        (60, "  epoch  3/10  step 150/450  loss=0.1235  320 samples/s"),
        (30, "  epoch  3/10  step 150/450"),
        (20, "  epoch  3/10"),
        (5, "  epo"),
        (0, ""),
    ],
)
def test_a_narrow_terminal_gets_fewer_fields(width: int, line: str) -> None:
    assert begun("line").text(150, 0.12345, 110.0, width=width) == line


def test_the_line_overwrites_itself_and_is_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "31")
    stream = Terminal()
    progress = begun("line", stream)
    progress.erase()
    progress.update(150, None, 100.0)
    progress.update(151, None, 100.0)
    progress.erase()
    progress.erase()
    first, second, blank, end = stream.getvalue().split("\r")
    assert first == "  epoch  3/10  step 150/450"
    assert second == "  epoch  3/10  step 151/450".ljust(30)
    assert (blank, end) == (" " * 30, "")


def test_in_a_pipe_it_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    begun("lines").update(150, 0.5, 110.0)
    assert capsys.readouterr().out == (
        "  epoch  3/10  step 150/450  loss=0.5000  320 samples/s  ETA 5m 45s\n"
    )


def test_a_terminal_that_is_gone_is_let_go() -> None:
    stream = Terminal()
    progress = begun("line", stream)
    stream.close()
    progress.update(150, 0.5, 110.0)
    assert progress.period == float("inf")


def test_the_style_follows_the_stream_and_the_verbosity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flodl.log._level", None)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FLODL_VERBOSITY", "normal")
    assert progress_style(Terminal()) == "line"
    assert progress_style(io.StringIO()) == "lines"
    assert progress_style(None) == "none"
    monkeypatch.setenv("TERM", "dumb")
    assert progress_style(Terminal()) == "lines"
    monkeypatch.setattr("flodl.log._level", None)
    monkeypatch.setenv("FLODL_VERBOSITY", "quiet")
    assert progress_style(Terminal()) == "none"


def test_the_periods_are_ten_a_second_half_a_minute_and_never() -> None:
    styles: list[ProgressStyle] = ["line", "lines", "none"]
    assert [begun(style).period for style in styles] == [0.1, 30.0, float("inf")]


PROGRAM = dedent(
    """
    import sys, time
    from flodl.train import Trainer
    from tests.flodl.train.programs import line, network, sgd, squared_error

    def train_fn(model, batch):
        time.sleep(0.12)
        return squared_error(model, batch)

    builder = Trainer.builder(network, sgd, train_fn).dataset(line(12)).batch_size(3)
    builder.num_epochs(1).device("cpu").engine("eager").live(0).run()
    """
)


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_on_a_real_terminal_the_line_moves_and_leaves_no_trace() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=theirs,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "60", "FLODL_VERBOSITY": "normal"},
    ) as child:
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 4096):
                said += piece
        except OSError:  # the other end is closed
            pass
        assert child.stderr is not None
        assert child.stderr.read() == b""
    os.close(ours)
    assert child.returncode == 0
    assert said.count(b"  epoch 1/1  step ") >= 3
    shown = [line.rpartition(b"\r")[2] for line in said.replace(b"\r\n", b"\n").split(b"\n")]
    told = [line for line in shown if line.startswith(b"  epoch")]
    assert len(told) == 1
    assert told[0].startswith(b"  epoch 1/1  loss=")
    assert b"step" not in told[0]


def test_an_epoch_of_unknown_length_has_no_end_to_tell() -> None:
    progress = Progress(10, "line")
    progress.begin(2, steps=None, done=0, batch_size=32, now=100.0)
    assert progress.text(100, 0.5, 110.0) == "  epoch  3/10  step 100  loss=0.5000  320 samples/s"
    progress.begin(2, steps=None, done=0, batch_size=None, now=100.0)
    assert progress.text(100, None, 110.0) == "  epoch  3/10  step 100"
