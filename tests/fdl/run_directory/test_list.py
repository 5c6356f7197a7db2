"""``fdl runs list``: every run of the project, whatever became of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from fdl.base import output
from fdl.runs.find import search
from fdl.runs.listing import on_terminal
from tests.fdl import screen
from tests.fdl.run_directory.trails import trail
from tests.waiting import pass_a_tick

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


def test_the_manifest_is_kept_for_the_next_look_and_not_by_a_dry_run(project, fdl):
    folder = project(MANIFESTS)
    trail(folder / "runs/train" / FIRST)
    pass_a_tick()
    fdl("runs", "prune", "--keep", "1", "--dry-run")
    fdl("-n", "runs", "prune", "--keep", "1")
    assert not (folder / ".fdl").exists()
    listed = fdl("runs", "list")
    assert (folder / ".fdl/manifest.json").is_file()
    assert (folder / "train/deep/.fdl/manifest.json").is_file()
    assert names(fdl("runs", "list")) == names(listed)


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
    heads, row, left = screen.lines(raw, columns)
    assert heads.split()[:4] == ["RUN", "STATE", "EPOCHS", "TIME"]
    assert row.startswith(f"{FIRST}  failed")
    assert left.endswith("…")
    assert " more for --columns: encoder." in left
    assert max(map(len, (heads, row, left))) <= columns
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
    assert [line.partition("2m05s  ")[2] for line in lines[1:]] == [
        "0.2000 (epoch 1)",
        "0.3000 (epoch 2)",
        "",
    ]
    best = names(fdl("runs", "list", "--best", "accuracy"))
    assert best == [f"runs/train/{SECOND}", f"runs/train/{FIRST}", f"runs/train/{THIRD}"]
    best = names(fdl("runs", "list", "--best", "val_loss:max"))
    assert best == [f"runs/train/{FIRST}", f"runs/train/{SECOND}", f"runs/train/{THIRD}"]


def test_of_two_runs_with_one_best_epoch_the_one_that_trained_it_is_the_best(project, fdl):
    folder = project(MANIFESTS) / "runs/train"
    trail(folder / FIRST, metrics={"loss": [0.5, 0.2]})
    last = str(folder / FIRST / "last.fdl")
    trail(folder / SECOND, metrics={"loss": [0.5, 0.2, 0.4]}, resumed_from=last)
    trail(folder / THIRD, metrics={"loss": [0.2]})
    best = [one.rpartition("/")[2] for one in names(fdl("runs", "list", "--best", "loss"))]
    assert best == [THIRD, FIRST, SECOND]
    assert fdl("runs", "show", "best:loss:max", "--json").out.count(FIRST) > 0


def test_settings_of_the_start_are_shown_behind_those_of_the_training(project):
    folder = project(MANIFESTS) / "runs/train"
    for at, name in enumerate((FIRST, SECOND)):
        config = {"live": bool(at), "output": f"o{at}", "resume": f"r{at}", "lr": at, "seed": at}
        trail(folder / name, config=config)
    _, raw = screen.typed("runs", "list", cwd=folder.parents[1], columns=80, env={})
    assert screen.lines(raw, 80)[0].split()[-4:] == ["lr", "seed", "live", "output"]


def test_a_metric_that_no_run_has_is_refused(project, fdl):
    trail(project(MANIFESTS) / "runs/train" / FIRST, metrics={"val_loss": [0.2, 0.9]})
    refused = fdl("runs", "list", "--best", "val_los")
    assert (refused.exit, refused.out) == (2, "")
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
        "damaged": [],
        "runs": [
            {
                "name": FIRST,
                "title": FIRST,
                "path": str(folder / "runs/train" / FIRST),
                "state": "failed",
                "started": "2026-01-31T10:00:00+00:00",
                "finished": "2026-01-31T10:02:05+00:00",
                "seconds": 125.0,
                "epochs": 2,
                "resumed_from": None,
                "imported_from": None,
                "tags": [],
                "note": None,
                "error": "ValueError: no",
                "metrics": {"loss": "inf"},
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
    assert (missing.exit, missing.out) == (2, "")
    assert "nowhere is not a folder" in missing.err


def test_without_a_project_it_is_the_runs_folder(tmp_path, fdl):
    assert "there are no runs in runs" in fdl("runs", "list").err
    refused = fdl("runs", "tail")
    assert refused.exit == 1
    assert "train first, or look into another folder: fdl runs list FOLDER" in refused.err
    trail(tmp_path / "runs/train" / FIRST)
    assert names(fdl("runs", "list")) == [f"runs/train/{FIRST}"]


def test_a_damaged_run_is_listed_as_damaged_and_what_is_no_run_is_passed_over(project, fdl):
    folder = project(MANIFESTS) / "runs/train"
    trail(folder / FIRST)
    trail(folder / "2026-03-05T10-00-00").rename(folder / ".new-abc")
    (trail(folder / SECOND) / "config.json").unlink()
    (trail(folder / THIRD) / "run.json").write_text('{"state": "unheard-of"}')
    (trail(folder / "2026-03-01T10-00-00") / "run.json").write_text("{half")
    (trail(folder / "2026-03-02T10-00-00") / "run.json").write_text("[" * 100_000)
    (trail(folder / "2026-03-03T10-00-00") / "metrics.csv").write_text("epoch,duration_s\n1,2")
    (trail(folder / "2026-03-04T10-00-00") / "metrics.csv").write_bytes(b"\xff\x00,\n")
    (folder / "tool").mkdir()
    (folder / "tool/run.json").write_text('{"command": "of another program"}')
    session = fdl("runs", "list")
    rows = [line.split()[:2] for line in session.out.splitlines()[1:]]
    assert rows == [
        ["runs/train/2026-03-04T10-00-00", "complete"],
        ["runs/train/2026-03-03T10-00-00", "complete"],
        ["runs/train/2026-03-02T10-00-00", "damaged"],
        ["runs/train/2026-03-01T10-00-00", "damaged"],
        [f"runs/train/{THIRD}", "damaged"],
        [f"runs/train/{SECOND}", "damaged"],
        [f"runs/train/{FIRST}", "complete"],
    ]
    assert f"warning: runs/train/{THIRD} has a run.json that is broken" in session.err
    assert f"{SECOND} has a run.json, and no config.json beside it" in session.err
    document = json.loads(fdl("runs", "list", "--json").out)
    assert len(document["runs"]) == 3
    assert document["damaged"][-1] == {
        "path": str(folder / SECOND),
        "problem": "has a run.json, and no config.json beside it",
    }
    shown = fdl("runs", "list", "--where", "state = damaged", "--columns", "name")
    assert shown.out.split()[1:] == [
        "2026-03-02T10-00-00", "2026-03-01T10-00-00", THIRD, SECOND,
    ]  # fmt: skip
    assert len(fdl("runs", "list", "--state", "damaged").out.splitlines()) == 5


def test_a_damaged_run_is_never_removed(project, fdl):
    folder = project(MANIFESTS) / "runs/train"
    (trail(folder / FIRST) / "run.json").write_text("{half")
    for code, said, words in (
        (0, "no run to remove", ["prune", "--keep", "0"]),
        (0, "no run to remove", ["prune", "--where", "age > 0"]),
        (0, "no run to remove", ["prune", "--keep-best", "0", "--by", "loss"]),
        (2, "a damaged run is never removed", ["prune", "--state", "damaged"]),
        (1, "run.json that is broken", ["rm", FIRST]),
        (1, "run.json that is broken", ["rm", f"runs/train/{FIRST}"]),
    ):
        session = fdl("runs", *words, "--yes")
        assert session.exit == code
        assert said in session.err
        assert sorted(path.name for path in (folder / FIRST).iterdir())[0] == "config.json"
    assert "restore it from a copy, or remove the folder" in fdl("runs", "rm", FIRST).err


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
    assert refused.exit == 2
    assert "did you mean `complete`?" in refused.err


def test_the_shell_completes_runs_states_and_metrics(project, fdl):
    folder = project(MANIFESTS)
    trail(folder / "runs/train" / FIRST, "failed")
    offered = fdl("__complete", "fish", "--", "runs", "show", "").out.splitlines()
    assert offered[:3] == [f"last\tThe newest: {FIRST}", f"{FIRST}\tfailed",
                           "best:loss\tThe best of all epochs"]  # fmt: skip
    states = fdl("__complete", "fish", "--", "runs", "prune", "--state", "").out.split()
    assert {"failed", "dead", "complete"} <= set(states)
    assert fdl("__complete", "fish", "--", "runs", "list", "--best", "").out.split() == ["loss"]


@pytest.fixture
def sweep(project):
    """Four runs: a learning rate that differs, a seed of two values, one data set."""
    folder = project({"fdl.yml": "entry: python main.py\noutput: {dir: out}"}) / "out"
    for place, (lr, seed, loss) in enumerate([(0.1, 1, 0.3), (0.01, 1, 0.1), (0.1, 2, 0.2)], 1):
        config = {"lr": {"value": lr, "origin": "command line"}, "seed": seed, "data": "mnist"}
        table = {"loss": [1, 0.5], "val_loss": [0.9, loss]}
        trail(folder / f"2026-01-0{place}T10-00-00", metrics=table, config=config)
    trail(folder / "2026-01-04T10-00-00", "failed", metrics={}, config={"seed": 3})
    return folder


@pytest.mark.usefixtures("sweep")
def test_a_terminal_of_80_columns_shows_metrics_and_what_differs_with_the_newest_last(tmp_path):
    _, raw = screen.typed("runs", "list", cwd=tmp_path, columns=80, env={})
    assert screen.lines(raw, 80) == [
        "RUN                  STATE     EPOCHS   TIME    loss  val_loss  lr    seed",
        "2026-01-01T10-00-00  complete       2  2m05s  0.5000    0.3000  0.1   1",
        "2026-01-02T10-00-00  complete       2  2m05s  0.5000   0.1000*  0.01  1",
        "2026-01-03T10-00-00  complete       2  2m05s  0.5000    0.2000  0.1   2",
        "2026-01-04T10-00-00  failed         2  2m05s                          3",
    ]


@pytest.mark.usefixtures("sweep")
def test_a_table_of_chosen_columns(fdl):
    session = fdl(
        "runs", "list", "--where", "val_loss < 0.25 and lr >= 0.01", "--sort", "val_loss",
        "--columns", "lr,seed,val_loss", "--limit", "20",
    )  # fmt: skip
    assert (session.exit, session.err) == (0, "")
    assert session.out.splitlines() == [
        "RUN                  lr    seed  val_loss",
        "2026-01-02T10-00-00  0.01  1      0.1000*",
        "2026-01-03T10-00-00  0.1   2       0.2000",
    ]


@pytest.mark.usefixtures("sweep")
def test_csv_has_every_value_in_full(fdl):
    session = fdl("runs", "list", "--csv", "--columns", "lr,val_loss,started", "--limit", "2")
    assert session.out.splitlines()[0] == "name,lr,val_loss,started"
    newest, one = session.out.splitlines()[1:]
    assert newest.startswith("2026-01-04T10-00-00,,,2026-01-04T")
    assert one.startswith("2026-01-03T10-00-00,0.1,0.2,2026-01-03T")
    heads, *rows = fdl("runs", "list", "--csv").out.splitlines()
    assert heads == (
        "name,path,state,started,finished,seconds,epochs,tags,note,resumed_from,imported_from,"
        "loss,val_loss,config.seed,config.lr,config.data"
    )
    assert rows[-1].endswith(",0.5,0.3,1,0.1,mnist")


@pytest.mark.usefixtures("sweep")
@pytest.mark.parametrize(
    ("key", "order"),
    [
        ("val_loss", [2, 3, 1, 4]),
        ("val_loss:max", [1, 3, 2, 4]),
        ("best:val_loss", [2, 3, 1, 4]),
        ("max(val_loss)", [3, 2, 1, 4]),
        ("lr", [2, 3, 1, 4]),
        ("config.seed:max", [4, 3, 2, 1]),
        ("started", [1, 2, 3, 4]),
        ("state:max", [4, 3, 2, 1]),
    ],
)
def test_the_order_is_that_of_any_quantity(fdl, key, order):
    session = fdl("runs", "list", "--sort", key, "--columns", "name")
    assert session.out.split()[1:] == [f"2026-01-0{day}T10-00-00" for day in order]


def test_numbers_are_sorted_as_numbers_also_where_a_sweep_recorded_texts(project, fdl):
    folder = project({"fdl.yml": "entry: python main.py\noutput: {dir: out}"}) / "out"
    sizes = {1: "20", 2: 100, 3: "5", 4: "1e1", 5: "large"}
    for day, size in sizes.items():
        trail(folder / f"2026-01-0{day}T10-00-00", metrics={}, config={"size": size})
    for key, order in (("size", [3, 4, 1, 2, 5]), ("size:max", [5, 2, 1, 4, 3])):
        found = names(fdl("runs", "list", "--columns", "name,size", "--sort", key))
        assert found == [f"2026-01-0{day}T10-00-00" for day in order]


@pytest.mark.usefixtures("sweep")
def test_json_has_the_chosen_columns(fdl):
    document = json.loads(fdl("runs", "list", "--json", "--columns", "lr,best:loss").out)
    assert [one["columns"] for one in document["runs"]][:2] == [
        {"lr": None, "best:loss": None},
        {"lr": 0.1, "best:loss": 0.5},
    ]


@pytest.mark.usefixtures("sweep")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--columns", "lrr"], "no run has the metric, setting or fact `lrr`"),
        (["--sort", "los"], "did you mean `loss`?"),
        (["--limit", "0"], "--limit takes 1 or more, not 0"),
        (["--csv", "--json"], "--csv and --json exclude each other"),
        (["--sort", "loss", "--best", "loss"], "--sort and --best exclude each other"),
    ],
)
def test_what_cannot_be_listed_is_refused(fdl, words, problem):
    session = fdl("runs", "list", *words)
    assert (session.exit, session.out) == (2, "")
    assert problem in session.err


@pytest.mark.usefixtures("sweep")
def test_the_shell_completes_columns_and_conditions(fdl):
    offered = fdl("__complete", "fish", "--", "runs", "list", "--columns", "lr,").out
    assert "lr,val_loss\tMetric" in offered
    assert "lr,seed\tSetting" in offered
    offered = fdl("__complete", "fish", "--", "runs", "list", "--where", "lr > 1 and (val").out
    assert "lr > 1 and (val_loss\tMetric" in offered
    offered = fdl("__complete", "fish", "--", "runs", "prune", "--checkpoints", "").out
    assert offered.split("\n")[0] == "last\tlast.fdl"


def test_signs_that_take_two_columns_count_twice(tmp_path):
    for day, title in enumerate("\u5b9f\u9a13"):
        metrics = {f"loss_{letter}": [0.25 + day] for letter in "abcd"}
        trail(tmp_path / f"2026-01-0{day + 1}T10-00-00", name=12 * title, metrics=metrics)
    table, left = on_terminal(search([tmp_path]), 70)
    lines = output.drawn(table, width=70).splitlines()
    assert lines[0].split() == ["RUN", "STATE", "EPOCHS", "TIME", "loss_a", "loss_b"]
    assert left == ["loss_c", "loss_d"]
    assert max(map(cell_len, lines)) <= 70
    assert "\u2026" not in "".join(lines)


def test_a_whole_number_beyond_a_float_is_sorted_like_any_other(project, fdl):
    folder = project({"fdl.yml": ""}) / "runs"
    for day, seed in enumerate([10**400, 3, -(10**400), 4], start=1):
        trail(folder / f"2026-01-0{day}T10-00-00", config={"seed": {"value": seed}})
    listed = fdl("runs", "list", "--sort", "seed", "--columns", "name")
    assert [name[9:10] for name in listed.out.split()[1:]] == ["3", "2", "4", "1"]
