"""``track:`` of the manifest: programs that log to MLflow or W&B leave run folders.

The programs in ``tests/projects/trackers`` are as users write them, and know nothing of fdl.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from array import array
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest

from fdl.run.tracker import variables
from tests.conftest import FIXTURES, typed_in
from tests.flodl.monitor.media.wandb_files import offline_files, offline_records
from tests.rows import each_row

PROGRAMS = FIXTURES / "trackers"
FAIL = ("mlflow_fails", "wandb_fails")
RUNS = {"mlflow_nested": 3, "mlflow_loop": 3, "wandb_loop": 2}
"""Programs with several runs."""
SAMPLE = ("mlflow_epochs", "wandb_basic")

READ_MLFLOW = """
import json, sys
from mlflow import MlflowClient

client = MlflowClient(tracking_uri=sys.argv[1])
found = {}
for experiment in client.search_experiments():
    for run in client.search_runs([experiment.experiment_id]):
        names = run.data.metrics
        histories = {one: client.get_metric_history(run.info.run_id, one) for one in names}
        found[run.info.run_id] = {
            name: [(one.step, one.value) for one in values] for name, values in histories.items()
        }
print(json.dumps(found))
"""


def tracked(root, name):
    """Start a program unchanged; return the session and the run folders."""
    root.mkdir()
    shutil.copy(PROGRAMS / f"{name}.py", root)
    (root / "fdl.yml").write_text(
        f"entry: python {name}.py\n"
        f"track: {name.partition('_')[0]}\n"
        "commands:\n"
        "  go: {training: {}}\n"
    )  # fmt: skip
    session = typed_in(root)("go")
    return session, sorted(path.parent for path in root.glob("runs/go/*/run.json"))


def curves(folder):
    """The curves in the files of a run folder."""
    index = json.loads((folder / "steps/index.json").read_text())
    found = {}
    for name, stem in index["curves"].items():
        numbers = array("d", (folder / f"steps/{stem}.f64").read_bytes())
        found[name] = list(zip(map(int, numbers[::2]), numbers[1::2], strict=True))
    return found


def of_mlflow(folder):
    """Run -> its curves, as MLflow itself reads its store."""
    store = (folder / "mlruns").as_uri()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READ_MLFLOW, store],
        capture_output=True,
        text=True,
        check=True,
        env={"MLFLOW_ALLOW_FILE_STORE": "true", "PATH": "/usr/bin:/bin"},
    )
    return {
        run: {
            # Without steps, all values stand at step 0.
            name: list(enumerate(v for _, v in points)) if not any(step for step, _ in points)
            else [tuple(one) for one in points]
            for name, points in found.items()
        }
        for run, found in json.loads(done.stdout).items()
    }  # fmt: skip


def of_wandb(folder):
    """Run -> its curves, by the protocol buffers of W&B."""
    return {file.parent.name: history(file) for file in offline_files(folder / "wandb")}


def history(file):
    found, summary = {}, {}
    for record in offline_records(file):
        row = {tuple(i.nested_key) or (i.key,): json.loads(i.value_json) for i in
               record.history.item}  # fmt: skip
        media = {path[0] for path in row if path[-1] == "_type"}
        for path, value in row.items():
            if type(value) in (int, float) and path[0][0] != "_" and path[0] not in media:
                found.setdefault(".".join(path), []).append((row["_step",], float(value)))
        for item in record.summary.update:
            value = json.loads(item.value_json)
            if item.key and item.key[0] != "_" and type(value) in (int, float):
                summary[item.key] = float(value)
    last = max(points[-1][0] for points in found.values())
    return {name: [(last, value)] for name, value in summary.items()} | found


def comparable(found):
    """Curves as text: nan is not equal to itself. A metric `epoch` numbers the others."""
    return {name: repr(points) for name, points in found.items() if name != "epoch"}


def check(name, session, folders):
    assert session.exit == (1 if name in FAIL else 0), session.err
    main = next(folder for folder in folders if (folder / "training.log").exists())
    known = of_mlflow(main) if name.startswith("mlflow") else of_wandb(main)
    assert len(folders) == len(known) == RUNS.get(name, 1)
    for folder in folders:
        record = json.loads((folder / "run.json").read_text())
        own = known.pop((record.get("tracked_by") or record["imported_from"])["id"])
        assert comparable(curves(folder)) == comparable(own)
    assert not known


BY_HAND = """
import os, pathlib, sys, time

def run(name, start, **curves):
    folder = pathlib.Path(os.environ["MLFLOW_TRACKING_URI"].removeprefix("file://"), "0", name)
    (folder / "metrics").mkdir(parents=True)
    (folder / "params").mkdir()
    (folder / "params/lr").write_text("0.5")
    text = f"run_id: {name}\\nrun_name: {name}\\nstart_time: {start}\\nstatus: 3\\n"
    (folder / "meta.yaml").write_text(text)
    for metric, values in curves.items():
        lines = [f"{start + step} {value} {step}" for step, value in enumerate(values)]
        (folder / "metrics" / metric).write_text("\\n".join(lines))
    return folder
"""
"""Writes a file store as MLflow does, in a moment."""


@pytest.fixture
def program(project):
    """A project with ``fdl go``, whose program writes a store by hand and ends as given."""

    def make(end, more="track: mlflow"):
        return project({
            "main.py": BY_HAND + end,
            "fdl.yml": f"entry: python main.py\n{more}\ncommands:\n  go: {{training: {{}}}}\n",
        })  # fmt: skip

    return make


def test_the_first_run_fills_the_folder_and_further_ones_stand_beside_it(program, fdl):
    root = program("run('late', 2000, loss=[3])\nrun('early', 1000, loss=[2, 1], epoch=[1, 2])\n")
    assert fdl("go").exit == 0
    main, beside = sorted(path.parent for path in root.glob("runs/go/*/run.json"))
    assert beside.name == f"{main.name}-late"
    assert curves(main) == {"loss": [(0, 2.0), (1, 1.0)]}
    record = json.loads((main / "run.json").read_text())
    assert (record["state"], record["epochs"]) == ("complete", 2)
    assert record["tracked_by"] == {"format": "mlflow", "id": "early", "status": "FINISHED"}
    assert json.loads((main / "config.json").read_text())["lr"]["value"] == 0.5


def test_a_program_may_write_a_configuration_of_its_own_into_the_folder(program, fdl):
    """As `save_pretrained` of transformers does, whose numbers MLflow logs as well."""
    root = program(
        "file = pathlib.Path(os.environ['FDL_RUN_DIR'], 'config.json')\n"
        'file.write_text(\'{"lr": 0.1, "layers": 2}\')\n'
        "run('one', 1000, loss=[2])\n"
    )
    session = fdl("go")
    assert (session.exit, "Traceback" in session.err) == (0, False), session.err
    [record] = root.glob("runs/go/*/run.json")
    assert json.loads(record.read_text())["state"] == "complete"
    settings = json.loads(fdl("runs", "show", "--json").out)["config"]
    assert {name: one["value"] for name, one in settings.items()} == {"lr": 0.5, "layers": 2}


def test_the_exit_code_says_how_a_run_ended(program, fdl):
    root = program("run('one', 1000, loss=[2])\nsys.exit(3)\n")
    assert fdl("go").exit == 3
    [record] = root.glob("runs/go/*/run.json")
    assert json.loads(record.read_text())["state"] == "failed"


def test_a_run_of_a_sweep_that_is_repeated_has_the_curves_of_its_last_start(program, fdl):
    root = program(
        "again = pathlib.Path('mended').exists()\n"
        "run(str(time.time_ns()), time.time_ns() // 10**6, loss=[1] if again else [9, 9])\n"
        "sys.exit(0 if again else 3)\n"
    )
    assert fdl("go", "--each", "seed=1").exit == 3
    (root / "mended").touch()
    assert fdl("sweep", "resume", "--retry", "failed").exit == 0
    [record] = root.rglob("run.json")
    assert curves(record.parent) == {"loss": [(0, 1.0)]}
    assert len(list(record.parent.glob("mlruns/0/*"))) == 2, "the files of the tracker stay"


def test_a_program_that_logs_nothing_is_warned_about(program, fdl):
    program("print('hello')\n")
    session = fdl("go")
    assert session.exit == 0
    assert "`track: mlflow` found no run" in session.err


def test_a_preset_may_turn_a_tracker_off(program, fdl):
    root = program("assert 'MLFLOW_TRACKING_URI' not in os.environ\n", "track: mlflow\nenv: {A: b}")
    (root / "fdl.yml").write_text(
        "entry: python main.py\ntrack: mlflow\ncommands:\n  go: {track: null, training: {}}\n"
    )
    session = fdl("go")
    assert (session.exit, "track" in session.err) == (0, False)


def test_curves_are_there_while_the_program_runs(program, fdl):
    # The program ends once fdl has written its curve.
    program(
        "run('one', 1000, loss=[2, 1]).joinpath('latest').symlink_to('not there yet')\n"
        "file = pathlib.Path(os.environ['FDL_RUN_DIR'], 'metrics.csv')\n"
        "end = time.monotonic() + 60\n"
        "while not file.exists() and time.monotonic() < end:\n"
        "    time.sleep(0.01)\n"
        "sys.exit(0 if file.exists() else 9)\n"
    )
    assert fdl("go").exit == 0


@each_row("folder", ["/home/me/C# port", "/data/100%25", "/läufe/a?b"])
def test_the_store_of_mlflow_has_the_address_that_mlflow_reads(folder):
    store = variables("mlflow", folder)["MLFLOW_TRACKING_URI"]
    # As `local_file_uri_to_path` of MLflow does.
    assert url2pathname(urlparse(store).path) == f"{folder}/mlruns"


def test_a_tracker_that_does_not_exist_is_refused(program, fdl):
    program("", "track: comet")
    session = fdl("go")
    assert session.exit != 0
    assert "mlflow" in session.err


@each_row("name", SAMPLE)
def test_a_program_unchanged_leaves_the_curves_that_its_tracker_has(tmp_path, name):
    check(name, *tracked(tmp_path / name, name))


@pytest.mark.slow
@each_row("name", sorted({one.stem for one in PROGRAMS.glob("*.py")} - set(SAMPLE)))
def test_eighteen_more_programs_unchanged_leave_their_curves(tmp_path, name):
    check(name, *tracked(tmp_path / name, name))
