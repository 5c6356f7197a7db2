"""The numbers that the progress of an epoch shows, and its lines in a pipe."""

from __future__ import annotations

import io

import pytest

from flodl.terminal import Style
from flodl.train.observers.progress import Progress
from tests.rows import each_row


def begun(style: Style = "lines") -> Progress:
    """Epoch 3 of 10 with 450 batches of 32, 50 of them done before; the clock says 100."""
    progress = Progress(10, style, stream=io.StringIO())
    progress.begin(2, steps=450, done=50, batch_size=32, now=100.0)
    return progress


def test_the_line_tells_epoch_step_loss_rate_and_time_to_go() -> None:
    # 100 batches in 10 s: 320 samples/s; 300 + 7 * 450 batches to go are 345 s.
    assert begun().text(150, 0.12345, 110.0) == (
        "  epoch  3/10  step 150/450  loss=0.1235  320 samples/s  ETA 5m 45s"
    )
    line = begun().line(150, 0.12345, {"accuracy": 0.5}, 110.0)
    assert (line.head, line.steps, line.share) == ("epoch  3/10", "150/450", 150 / 450)
    assert line.values == ["loss=0.1235", "accuracy=0.5000"]
    assert (line.rate, line.eta) == ("320 samples/s", "ETA 5m 45s")


def test_nothing_is_claimed_before_it_is_known() -> None:
    assert begun().text(50, None, 100.0) == "  epoch  3/10  step  50/450"
    line = begun().line(50, None, {}, 100.0)
    assert (line.values, line.rate, line.eta) == ([], "", "")


@each_row(
    ("samples", "seconds", "shown"),
    [(32, 64.0, "0.50"), (3200, 70.0, "45.7"), (3200, 1.0, "3.20k"), (3200, 0.001, "3.20M")],
)
def test_a_rate_has_three_digits(samples: int, seconds: float, shown: str) -> None:
    line = begun().line(50 + samples // 32, None, {}, 100.0 + seconds)
    assert line.rate == f"{shown} samples/s"


def test_a_name_cannot_move_the_cursor() -> None:
    assert begun().line(60, None, {"a\x1b[2J\n": 1.0}, 100.0).values == ["a\\x1b[2J\\n=1.0000"]


def test_in_a_pipe_it_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    begun().update(150, 0.5, {"accuracy": 0.5}, 110.0)
    assert capsys.readouterr().out == (
        "  epoch  3/10  step 150/450  loss=0.5000  320 samples/s  ETA 5m 45s\n"
    )


def test_the_periods_are_five_a_second_half_a_minute_and_never() -> None:
    styles: list[Style] = ["bar", "lines", "none"]
    assert [begun(style).period for style in styles] == [0.2, 30.0, float("inf")]


def test_an_epoch_of_unknown_length_has_no_end_to_tell() -> None:
    progress = Progress(10, "lines", stream=io.StringIO())
    progress.begin(2, steps=None, done=0, batch_size=32, now=100.0)
    assert progress.text(100, 0.5, 110.0) == "  epoch  3/10  step 100  loss=0.5000  320 samples/s"
    line = progress.line(100, 0.5, {}, 110.0)
    assert (line.steps, line.share, line.eta) == ("100 steps", None, "")
    assert line.rate == "320 samples/s"
    progress.begin(2, steps=None, done=0, batch_size=None, now=100.0)
    assert progress.text(100, None, 110.0) == "  epoch  3/10  step 100"
