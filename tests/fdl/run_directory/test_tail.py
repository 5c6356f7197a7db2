"""``fdl runs tail``: what a run writes, as it comes, until its end."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from fdl.runs.follow import follow
from fdl.runs.run import read
from tests.fdl.run_directory.trails import trail

NAME = "2026-01-31T10-00-00"


def end(run, state):
    record = json.loads((run / "run.json").read_text())
    ended = run / "run.json.new"
    ended.write_text(json.dumps({**record, "state": state}))
    # At once: whoever follows the run looks at any time.
    ended.replace(run / "run.json")


def test_the_last_lines(tmp_path, fdl):
    run = trail(tmp_path / "runs" / NAME)
    assert fdl("runs", "tail").out == "# flodl training log\nepoch 1/2\nepoch 2/2\n"
    assert fdl("runs", "tail", "last", "--lines", "1").out == "epoch 2/2\n"
    assert fdl("runs", "tail", "--lines", "0").out == ""
    assert fdl("runs", "tail", "--lines", "-1").exit != 0
    (run / "training.log").unlink()
    missing = fdl("runs", "tail")
    assert (missing.exit, missing.out) == (1, "")
    assert f"{NAME} has no training.log to read" in missing.err
    assert f"fdl runs show {NAME}" in missing.err


@pytest.mark.parametrize("how", [["--metrics"], ["--metrics", "--follow"]])
def test_a_table_keeps_its_heading(tmp_path, fdl, how):
    trail(tmp_path / "runs" / NAME, metrics={"loss": [0.5, 0.25, 0.125]})
    heading, row = fdl("runs", "tail", *how, "-l", "1").out.splitlines()
    assert heading.startswith("epoch,duration_s,loss,")
    assert row.startswith("3,1.000,0.125,")
    assert fdl("runs", "tail", *how, "-l", "0").out == f"{heading}\n"
    for whole in ("3", "9"):
        lines = fdl("runs", "tail", *how, "-l", whole).out.splitlines()
        assert [line.split(",")[0] for line in lines] == ["epoch", "1", "2", "3"]


def test_nothing_a_run_writes_steers_the_terminal(tmp_path, fdl):
    run = trail(tmp_path / "runs" / NAME)
    (run / "training.log").write_bytes(b"\x1b[2Jred\xff\n")
    assert fdl("runs", "tail").out == "\\x1b[2Jred\ufffd\n"


@pytest.mark.parametrize(
    ("state", "code"), [("complete", 0), ("failed", 1), ("interrupted", 1), ("dead", 1)]
)
def test_following_a_run_that_has_ended_ends_at_once(tmp_path, fdl, state, code):
    trail(tmp_path / "runs" / NAME, state)
    session = fdl("runs", "tail", "-f")
    assert session.exit == code
    assert session.out.endswith("epoch 2/2\n")
    assert session.err == f"runs/{NAME}: {state}\n"


@pytest.mark.parametrize("how", [[], ["--follow"]])
def test_only_the_end_of_a_line_ends_it(tmp_path, fdl, how):
    run = trail(tmp_path / "runs" / NAME)
    (run / "training.log").write_bytes(b"10 %\r20 %\na\x0cb\xe2\x80\xa8c\r\nend")
    assert fdl("runs", "tail", *how).out == "10 %\\r20 %\na\\x0cb\\u2028c\nend\n"


@pytest.fixture
def watcher(tmp_path):
    """Somebody who follows the last run."""
    with subprocess.Popen(
        [sys.executable, "-m", "fdl", "runs", "tail", "--follow", "-l", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


@pytest.fixture
def running(tmp_path):
    """A run that goes on."""
    return trail(tmp_path / "runs" / NAME, "running")


def test_new_lines_appear_while_the_run_goes_on_and_it_ends_with_the_run(running, watcher):
    assert watcher.stdout.readline() == "epoch 2/2\n"
    with (running / "training.log").open("a") as log:
        log.write("epoch 3/")
        log.flush()
        time.sleep(0.5)
        log.write("4\nepoch 4/4\n")
    assert watcher.stdout.readline() == "epoch 3/4\n"
    assert watcher.stdout.readline() == "epoch 4/4\n"
    assert watcher.poll() is None
    with (running / "training.log").open("a") as log:
        log.write("training complete")
    end(running, "complete")
    assert watcher.stdout.read() == "training complete\n"
    assert watcher.wait(60) == 0


def test_a_file_that_appears_late_or_is_written_anew_is_told_from_its_beginning(tmp_path):
    run = trail(tmp_path / "runs" / NAME, "running")
    file = run / "metrics.csv"
    file.unlink()
    script = iter(["epoch\n1\n", "epoch,loss\n1,0.5\n2,0.25\n", None])

    def next_scene(_seconds):
        text = next(script)
        if text is None:
            end(run, "complete")
            return
        fresh = file.with_suffix(".tmp")
        fresh.write_text(text)
        fresh.replace(file)

    lines = list(follow(read(run), file, 10, pause=next_scene))
    assert lines == ["epoch", "1", "epoch,loss", "1,0.5", "2,0.25"]


def test_following_ends_when_the_run_is_removed(tmp_path):
    run = trail(tmp_path / "runs" / NAME, "running")
    found = read(run)

    def vanish(_seconds):
        (run / "run.json").unlink(missing_ok=True)

    assert list(follow(found, run / "training.log", 1, pause=vanish)) == ["epoch 2/2"]
