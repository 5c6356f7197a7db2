"""``fdl runs list``: every run of the project, whatever became of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fdl import screen
from tests.fdl.run_directory.trails import trail

MANIFESTS = {
    "fdl.yml": "commands: {train: , tools: {run: echo hi}}",
    "train/fdl.yml": """
        entry: python main.py
        output: {dir: runs/train}
        commands:
          quick: {output: {dir: runs/quick}}
          deep: {path: deep}
        """,
    "train/deep/fdl.yml": "entry: python main.py\noutput: {dir: elsewhere}",
}

FIRST, SECOND, THIRD = "2026-01-31T10-00-00", "2026-02-01T10-00-00", "2026-02-02T10-00-00"


def names(session):
    """The first column, without its heading."""
    assert (session.exit, session.err) == (0, "")
    return [line.split()[0] for line in session.out.splitlines()[1:]]


def own_boot():
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def ended_process():
    """The number of a process that has ended."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_every_output_folder_of_the_manifests_is_listed_newest_first(project, fdl):
    folder = project(MANIFESTS)
    trail(folder / "runs/train" / FIRST)
    trail(folder / "runs/quick" / THIRD)
    trail(folder / "elsewhere" / SECOND)
    trail(folder / "not-named" / SECOND)
    expected = [f"runs/quick/{THIRD}", f"elsewhere/{SECOND}", f"runs/train/{FIRST}"]
    assert names(fdl("runs", "list")) == expected
    (folder / "sub").mkdir()
    assert names(fdl("runs", "list", cwd="sub")) == [str(folder / one) for one in expected]


def test_a_line_tells_state_epochs_time_metrics_and_origin(project, fdl):
    folder = project(MANIFESTS)
    trail(
        folder / "runs/train" / FIRST,
        metrics={"loss": [0.5, 0.00025], "acc": ["nan", 150]},
        resumed_from=f"runs/train/{SECOND}/last.fdl",
    )
    assert fdl("runs", "list").out.splitlines() == [
        "RUN                             STATE     EPOCHS   TIME  LAST",
        f"runs/train/{FIRST}  complete       2  2m05s  loss=2.50e-4  acc=150.00"
        f"  (resumed {SECOND})",
    ]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_line_ends_at_the_edge_of_the_terminal_and_is_whole_in_a_pipe(project, fdl, columns):
    folder = project(MANIFESTS)
    many = {f"encoder.block{place}.loss": [0.5] for place in range(30)}
    trail(folder / "runs/train" / FIRST, "failed", metrics=many)
    _, raw = screen.typed("runs", "list", cwd=folder, columns=columns, env={})
    shown = screen.lines(raw, columns)
    assert len(shown) == 2
    assert shown[1].startswith(f"runs/train/{FIRST}  failed")
    assert shown[1].endswith("…")
    assert fdl("runs", "list").out.endswith("encoder.block29.loss=0.5000\n")


def test_runs_of_one_second_are_told_apart(project, fdl):
    folder = project(MANIFESTS)
    for ending in ("", "-2", "-10"):
        trail(folder / "runs/train" / f"{FIRST}{ending}")
    shown = [one.rpartition("/")[2] for one in names(fdl("runs", "list"))]
    assert shown == [f"{FIRST}-10", f"{FIRST}-2", FIRST]


def test_a_run_whose_process_is_gone_is_dead(project, fdl, ended_process):
    folder = project(MANIFESTS) / "runs/train"
    here = {"host": socket.gethostname(), "boot_id": own_boot()}
    trail(folder / "2026-01-01T10-00-00", "running", pid=os.getpid(), **here)
    trail(folder / "2026-01-01T10-01-00", "running", pid=ended_process, **here)
    trail(folder / "2026-01-01T10-02-00", "running", pid=os.getpid(), **{**here, "boot_id": "x"})
    trail(folder / "2026-01-01T10-03-00", "running", pid=ended_process, host="another")
    trail(folder / "2026-01-01T10-04-00", "running")
    trail(folder / "2026-01-01T10-05-00", "failed", pid=ended_process, **here)
    document = json.loads(fdl("runs", "list", "--json").out)
    states = [one["state"] for one in reversed(document["runs"])]
    assert states == ["running", "dead", "dead", "running", "running", "failed"]
    assert len(names(fdl("runs", "list", "--state", "dead"))) == 2


def test_the_best_of_a_metric_comes_first(project, fdl):
    folder = project(MANIFESTS) / "runs/train"
    trail(folder / FIRST, metrics={"val_loss": [0.2, 0.9], "accuracy": [0.5, 0.7]})
    trail(folder / SECOND, metrics={"val_loss": [0.4, 0.3], "accuracy": [0.9, 0.8]})
    trail(folder / THIRD, metrics={"other": [1, "nan"]})
    lines = fdl("runs", "list", "--best", "val_loss").out.splitlines()
    assert lines[0].endswith("BEST val_loss")
    assert [line.split("2m05s  ")[1] for line in lines[1:]] == [
        "0.2000 (epoch 1)",
        "0.3000 (epoch 2)",
    ]
    best = names(fdl("runs", "list", "--best", "accuracy"))
    assert best == [f"runs/train/{SECOND}", f"runs/train/{FIRST}"]
    best = names(fdl("runs", "list", "--best", "val_loss:max"))
    assert best == [f"runs/train/{FIRST}", f"runs/train/{SECOND}"]
    refused = fdl("runs", "list", "--best", "val_los")
    assert (refused.exit, refused.out) == (1, "")
    assert "did you mean `val_loss`?" in refused.err


def test_json_says_the_same(project, fdl):
    folder = project(MANIFESTS)
    trail(
        folder / "runs/train" / FIRST, "failed", error="ValueError: no", metrics={"loss": ["inf"]}
    )
    document = json.loads(fdl("runs", "list", "--json").out)
    assert document == {
        "schema_version": 1,
        "queued": [],
        "runs": [
            {
                "name": FIRST,
                "path": str(folder / "runs/train" / FIRST),
                "state": "failed",
                "started": "2026-01-31T10:00:00+00:00",
                "finished": "2026-01-31T10:02:05+00:00",
                "seconds": 125.0,
                "epochs": 2,
                "resumed_from": None,
                "error": "ValueError: no",
                "metrics": {"loss": None},
            }
        ],
    }


def test_named_folders_and_runs_count_instead_of_the_manifests(project, fdl):
    folder = project(MANIFESTS)
    trail(folder / "runs/train" / FIRST)
    trail(folder / "old/a" / SECOND)
    trail(folder / "old/b" / THIRD)
    assert names(fdl("runs", "list", "old")) == [f"old/b/{THIRD}", f"old/a/{SECOND}"]
    assert names(fdl("runs", "list", f"old/a/{SECOND}", "old/b")) == [
        f"old/b/{THIRD}",
        f"old/a/{SECOND}",
    ]
    missing = fdl("runs", "list", "nowhere")
    assert (missing.exit, missing.out) == (1, "")
    assert "nowhere is not a folder" in missing.err


def test_without_a_project_it_is_the_runs_folder(tmp_path, fdl):
    assert "there are no runs in runs" in fdl("runs", "list").err
    refused = fdl("runs", "tail")
    assert refused.exit == 1
    assert "train first, or look into another folder: fdl runs list FOLDER" in refused.err
    trail(tmp_path / "runs/train" / FIRST)
    assert names(fdl("runs", "list")) == [f"runs/train/{FIRST}"]


def test_what_is_no_run_is_passed_over(project, fdl):
    folder = project(MANIFESTS) / "runs/train"
    trail(folder / FIRST)
    trail(folder / "2026-03-05T10-00-00").rename(folder / ".new-abc")
    (trail(folder / SECOND) / "config.json").unlink()
    (trail(folder / THIRD) / "run.json").write_text('{"state": "unheard-of"}')
    (trail(folder / "2026-03-01T10-00-00") / "run.json").write_text("{half")
    (trail(folder / "2026-03-02T10-00-00") / "run.json").write_text("[" * 100_000)
    (trail(folder / "2026-03-03T10-00-00") / "metrics.csv").write_text("epoch,duration_s\n1,2")
    (trail(folder / "2026-03-04T10-00-00") / "metrics.csv").write_bytes(b"\xff\x00,\n")
    assert names(fdl("runs", "list")) == [
        "runs/train/2026-03-04T10-00-00",
        "runs/train/2026-03-03T10-00-00",
        f"runs/train/{FIRST}",
    ]


def test_a_table_being_written_is_read_up_to_its_last_whole_line(project, fdl):
    folder = project(MANIFESTS)
    run = trail(folder / "runs/train" / FIRST, "running", epochs=0)
    with (run / "metrics.csv").open("a") as file:
        file.write("3,1.000,0.12")
    (line,) = fdl("runs", "list").out.splitlines()[1:]
    assert line.split()[2] == "2"
    assert line.endswith("loss=0.2500")


def test_a_state_that_does_not_exist_is_refused(project, fdl):
    project(MANIFESTS)
    refused = fdl("runs", "list", "--state", "compleet")
    assert refused.exit == 1
    assert "did you mean `complete`?" in refused.err


def test_the_shell_completes_runs_states_and_metrics(project, fdl):
    folder = project(MANIFESTS)
    trail(folder / "runs/train" / FIRST, "failed")
    offered = fdl("__complete", "fish", "--", "runs", "show", "").out.splitlines()
    assert offered[:3] == [f"last\tThe newest: {FIRST}", f"{FIRST}\tfailed",
                           "best:loss\tThe best of all epochs"]  # fmt: skip
    states = fdl("__complete", "fish", "--", "runs", "clean", "--state", "").out.split()
    assert {"failed", "dead", "complete"} <= set(states)
    assert fdl("__complete", "fish", "--", "runs", "list", "--best", "").out.split() == ["loss"]
