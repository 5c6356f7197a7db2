"""A long job's progress: a bar on a terminal, a line now and then elsewhere."""

import io

import pytest

from fdl import output, progress
from fdl.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that have passed, in a list so that a test can turn them."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_pipe_gets_a_line_every_ten_seconds_and_one_at_the_end(clock):
    stream = io.StringIO()
    with Progress("libtorch cpu", stream=stream) as job:
        job.start(200_000_000)
        for second in range(1, 22):
            clock[0] = second
            job.update(second * 8_000_000)
    assert stream.getvalue().splitlines() == [
        "libtorch cpu: 80.0 of 200 MB 40%, 8.0 MB/s, 0:15 left",
        "libtorch cpu: 160 of 200 MB 80%, 8.0 MB/s, 0:05 left",
        "libtorch cpu: 168 of 200 MB 84%, 8.0 MB/s, 0:04 left",
    ]


def test_a_job_that_fails_in_a_pipe_does_not_claim_an_end():
    stream = io.StringIO()

    def fail() -> None:
        with Progress("x", 10, stream=stream) as job:
            job.update(5)
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        fail()
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar_that_is_drawn_over(clock):
    stream = Terminal()
    with Progress("build", 48, unit="steps", stream=stream) as job:
        clock[0] = 0.05
        job.update(1)
        clock[0] = 1
        job.update(12)
        clock[0] = 2
        job.update(48)
    drawings = stream.getvalue().split("\r\x1b[K")
    assert drawings[1] == "[######                  ] build: 12/48 steps 25%"
    assert drawings[-1] == f"[{'#' * 24}] build: 48/48 steps 100%\n"
    # The first was too soon to be worth a drawing; the last is drawn again when the job ends.
    assert len(drawings) == 4


def test_what_an_earlier_call_did_counts_as_done_but_not_as_fast(clock):
    stream = io.StringIO()
    with Progress("x", stream=stream) as job:
        job.start(100_000_000, done=50_000_000)
        clock[0] = 10
        job.update(60_000_000)
    assert "60.0 of 100 MB 60%, 1.0 MB/s, 0:40 left" in stream.getvalue()


def test_an_unknown_total_shows_the_amount_alone(clock):
    stream = io.StringIO()
    with Progress("x", stream=stream) as job:
        clock[0] = 3
        job.update(7_200_000)
    assert stream.getvalue() == "x: 7.2 MB, 2.4 MB/s\n"


def test_a_long_wait_is_told_in_hours(clock):
    job = Progress("x", 10_000_000_000, stream=io.StringIO())
    clock[0] = 1
    job.update(1_000_000)
    assert job.text().endswith("2:46:39 left")


def test_quiet_mutes_it(clock):
    stream = Terminal()
    output.configure(None, quiet=True)
    try:
        with Progress("x", 2, stream=stream) as job:
            clock[0] = 5
            job.update(1)
    finally:
        output.configure(None, quiet=False)
    assert stream.getvalue() == ""
