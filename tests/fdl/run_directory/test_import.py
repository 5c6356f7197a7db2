"""``fdl runs import``: runs of other programs, as small files of the same form.

``test_import_real.py`` reads what the programs themselves write.
"""

from __future__ import annotations

import json
import math
import sqlite3
import struct
from array import array
from contextlib import closing

import pytest

from fdl.runs.find import search
from tests.later import tensorboard_files

META = """\
end_time: 1795500487493
experiment_id: '941572346455285655'
lifecycle_stage: {stage}
run_id: d86185e79c8f4c3182d4fba412c347a4
run_name: bold-fox
start_time: 1795500487467
status: {status}
tags: []
user_id: unknown
"""
LIGHTNING = """\
epoch,step,train_loss,val_loss
0,0,1.0,
0,1,0.5,
0,1,,0.9
1,2,0.25,
1,3,nan,
1,3,,0.7
"""
HPARAMS = """\
lr: 0.1
layers:
- 1
- 2
api_token: sesame-open-up
device: !!python/object/apply:torch.device
- cpu
"""


@pytest.fixture
def home(project):
    """A project whose runs are in ``out``."""
    return project({"fdl.yml": "entry: python main.py\noutput: {dir: out}"})


def written(folder, files):
    """Files of another program."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def mlflow_store(
    folder, status=3, stage="active", loss="1795500487485 1.0 0\n1795500487486 0.5 1\n"
):
    run = "941572346455285655/d86185e79c8f4c3182d4fba412c347a4"
    return written(
        folder,
        {
            "0/meta.yaml": "experiment_id: '0'\nlifecycle_stage: active\n",
            f"{run}/meta.yaml": META.format(status=status, stage=stage),
            f"{run}/params/lr": "0.1",
            f"{run}/params/optimizer": "adam",
            f"{run}/params/api_token": "sesame-open-up",
            f"{run}/tags/team": "vision",
            f"{run}/tags/mlflow.note.content": "the first try",
            f"{run}/tags/mlflow.source.git.commit": "cafe",
            f"{run}/metrics/train/loss": loss,
            f"{run}/metrics/acc": "1795500487485 nan 0\n1795500487486 inf 1\n",
        },
    )


def tree(folder):
    """Path -> content of every file, and the time of its last change."""
    return {
        str(file): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def test_a_file_store_of_mlflow(home, fdl):
    before = tree(mlflow_store(home / "mlruns"))
    session = fdl("runs", "import", "mlruns")
    assert (session.exit, session.err) == (0, "1 run: 1 new\n")
    assert session.out.split() == [
        "new", "out/imported/bold-fox", "mlflow",
        "mlruns/941572346455285655/d86185e79c8f4c3182d4fba412c347a4",
    ]  # fmt: skip
    assert tree(home / "mlruns") == before
    document = json.loads(fdl("runs", "show", "bold-fox", "--json").out)
    assert document["state"] == "complete"
    assert document["started"].startswith("2026-11-24T")
    assert document["seconds"] == 0.0
    assert document["imported_from"]["format"] == "mlflow"
    assert document["imported_from"]["status"] == "FINISHED"
    assert document["imported_from"]["path"].endswith("/d86185e79c8f4c3182d4fba412c347a4")
    assert document["note"] == "the first try"
    assert document["environment"] == {"git_commit": "cafe", "tag.team": "vision"}
    assert {name: one["value"] for name, one in document["config"].items()} == {
        "lr": 0.1, "optimizer": "adam", "api_token": "<secret>",
    }  # fmt: skip
    assert "sesame" not in (home / "out/imported/bold-fox/config.json").read_text()
    assert document["metrics"] == {"acc": "inf", "train/loss": 0.5}
    assert document["best"]["train/loss"] == {"value": 0.5, "step": 1}
    assert (home / "out/imported/bold-fox/metrics.csv").read_text().splitlines() == [
        "step,acc,train/loss",
        "0,nan,1.0",
        "1,inf,0.5",
    ]
    (line,) = fdl("runs", "list").out.splitlines()[1:]
    assert line.split() == [
        "out/imported/bold-fox", "complete", "0s", "acc=inf", "train/loss=0.5000",
    ]  # fmt: skip


def test_a_model_that_a_run_has_logged_is_no_run(home, fdl):
    store = mlflow_store(home / "mlruns")
    model = "941572346455285655/models/m-4f0c"
    written(
        store,
        {
            f"{model}/meta.yaml": "model_id: m-4f0c\nname: model\nlifecycle_stage: active\n"
            "status: 2\nsource_run_id: d86185e79c8f4c3182d4fba412c347a4\n",
            f"{model}/metrics/loss": "1795500487486 0.5 1 d86185e79c8f4c3182d4fba412c347a4\n",
        },
    )
    assert fdl("runs", "import", "mlruns").err == "1 run: 1 new\n"
    assert [run.name for run in search([home / "out"])] == ["bold-fox"]


def test_a_metric_called_step_does_not_number_the_rows(home, fdl):
    store = mlflow_store(home / "mlruns")
    (metrics,) = store.glob("*/*/metrics")
    written(metrics, {"step": "1795500487486 100 1\n"})
    assert fdl("runs", "import", "mlruns").exit == 0
    document = json.loads(fdl("runs", "show", "bold-fox", "--json").out)
    assert document["best"]["train/loss"] == {"value": 0.5, "step": 1}
    assert (home / "out/imported/bold-fox/metrics.csv").read_text().splitlines()[0] == (
        "step,acc,train/loss"
    )


def test_a_second_import_updates_and_never_doubles(home, fdl):
    mlflow_store(home / "mlruns", status=1)
    fdl("runs", "import", "mlruns")
    run = home / "out/imported/bold-fox"
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted"
    fdl("runs", "tag", "bold-fox", "mine")
    before = tree(home / "out")
    assert fdl("runs", "import", "mlruns").err == "1 run: 1 unchanged\n"
    assert tree(home / "out") == before
    mlflow_store(home / "mlruns", loss="1795500487485 1.0 0\n1795500487486 0.25 1\n")
    dry = fdl("runs", "import", "mlruns", "--dry-run")
    assert dry.err == "1 run: 1 updated; nothing was written\n"
    assert tree(home / "out") == before
    assert fdl("runs", "import", "mlruns").err == "1 run: 1 updated\n"
    assert [path.name for path in (home / "out/imported").iterdir()] == ["bold-fox"]
    document = json.loads(fdl("runs", "show", "bold-fox", "--json").out)
    assert (document["state"], document["metrics"]["train/loss"]) == ("complete", 0.25)
    assert (document["tags"], document["note"]) == (["mine"], "the first try")


def test_a_dry_run_writes_nothing(home, fdl):
    mlflow_store(home / "mlruns")
    session = fdl("runs", "import", "mlruns", "-n", "--json")
    assert json.loads(session.out)["runs"][0]["result"] == "new"
    assert not (home / "out").exists()


def test_what_was_deleted_there_is_not_imported(home, fdl):
    mlflow_store(home / "mlruns", stage="deleted")
    session = fdl("runs", "import", "mlruns")
    assert session.exit == 2
    assert "mlruns holds no run that can be imported" in session.err


# The tables that are read, as MLflow 3 makes them.
SCHEMA = """
CREATE TABLE experiments (experiment_id INTEGER NOT NULL, name VARCHAR(256) NOT NULL);
CREATE TABLE runs (run_uuid VARCHAR(32) NOT NULL, name VARCHAR(250), status VARCHAR(9),
  start_time BIGINT, end_time BIGINT, lifecycle_stage VARCHAR(20), experiment_id INTEGER);
CREATE TABLE metrics ("key" VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL,
  run_uuid VARCHAR(32) NOT NULL, step BIGINT DEFAULT '0' NOT NULL, is_nan BOOLEAN NOT NULL);
CREATE TABLE params ("key" VARCHAR(250) NOT NULL, value VARCHAR(8000) NOT NULL,
  run_uuid VARCHAR(32) NOT NULL);
CREATE TABLE tags ("key" VARCHAR(250) NOT NULL, value VARCHAR(8000), run_uuid VARCHAR(32) NOT NULL);
INSERT INTO runs VALUES
  ('a1', 'bold-fox', 'KILLED', 1795500487467, 1795500489467, 'active', 1),
  ('a2', 'gone', 'FINISHED', 1795500487467, 1795500489467, 'deleted', 1);
INSERT INTO params VALUES ('lr', '1e-3', 'a1');
INSERT INTO tags VALUES ('mlflow.user', 'ada', 'a1');
INSERT INTO metrics VALUES
  ('loss', 0.5, 1795500487468, 'a1', 0, 0), ('loss', 0, 1795500487469, 'a1', 1, 1),
  ('loss', 1.7976931348623157e308, 1795500487470, 'a1', 2, 0);
"""


def test_a_database_of_mlflow(home, fdl):
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        database.executescript(SCHEMA)
    before = tree(home)
    session = fdl("runs", "import", "mlflow.db")
    assert (session.exit, session.err) == (0, "1 run: 1 new\n")
    after = tree(home)
    assert {name: after[name] for name in before} == before
    assert not list(home.glob("mlflow.db-*"))
    document = json.loads(fdl("runs", "show", "bold-fox", "--json").out)
    assert (document["state"], document["seconds"]) == ("interrupted", 2.0)
    assert document["config"]["lr"]["value"] == 0.001
    table = (home / "out/imported/bold-fox/metrics.csv").read_text()
    assert table == "step,loss\n0,0.5\n1,nan\n2,inf\n"
    assert fdl("runs", "import", ".").err == "1 run: 1 unchanged\n"


def test_a_csv_log_of_lightning_has_epochs_and_steps(home, fdl):
    log = written(home / "logs/version_0", {"metrics.csv": LIGHTNING, "hparams.yaml": HPARAMS})
    assert fdl("runs", "import", "logs").exit == 0
    run = home / "out/imported/logs-version_0"
    document = json.loads(fdl("runs", "show", "logs-version_0", "--json").out)
    assert document["epochs"] == 2
    assert document["metrics"] == {"train_loss": "nan", "val_loss": 0.7}
    assert document["best"]["train_loss"] == {"value": 0.5, "epoch": 1}
    assert document["config"]["lr"] == {"value": 0.1, "origin": str(log / "hparams.yaml")}
    assert document["config"]["layers"]["value"] == [1, 2]
    assert document["config"]["device"]["value"] == ["cpu"]
    assert document["config"]["api_token"]["value"] == "<secret>"
    assert (run / "metrics.csv").read_text().splitlines() == [
        "epoch,duration_s,train_loss,val_loss,cpu_pct,ram_used,gpu_pct,vram_alloc,vram_spill",
        "1,,0.5,0.9,,,,,",
        "2,,nan,0.7,,,,,",
    ]
    index = json.loads((run / "steps/index.json").read_text())
    assert index == {
        "version": 1,
        "block": 128,
        "epochs": "epochs-0",
        "curves": {"train_loss": "0-0", "val_loss": "1-0"},
    }
    points = array("d", (run / "steps/0-0.f64").read_bytes()).tolist()
    assert points[:6] == [0, 1.0, 1, 0.5, 2, 0.25]
    assert points[6] == 3
    assert math.isnan(points[7])
    assert array("d", (run / "steps/epochs-0.f64").read_bytes()).tolist() == [1, 1, 3, 2]


def test_long_curves_have_blocks_and_a_table_of_bounded_length(home, fdl):
    values = [1.0] * 10_000
    values[4321], values[777] = 0.125, math.inf
    rows = "".join(f"{step},{value}\n" for step, value in enumerate(values))
    written(home / "logs", {"metrics.csv": f"step,loss\n{rows}", "hparams.yaml": "{}"})
    assert fdl("runs", "import", "logs").exit == 0
    run = home / "out/imported/logs"
    table = (run / "metrics.csv").read_text().splitlines()
    assert len(table) < 2010
    (found,) = search([run])
    assert found.metrics.unit == "step"
    document = json.loads(fdl("runs", "show", "logs", "--json").out)
    assert document["best"]["loss"] == {"value": 0.125, "step": 4321}
    assert len((run / "steps/0-0.f64").read_bytes()) == 16 * 10_000
    blocks = array("d", (run / "steps/0-0.blocks.f64").read_bytes()).tolist()
    assert len(blocks) == 6 * (10_000 // 128)
    place = 4321 // 128
    first, last, low, high, _, broken = blocks[6 * place : 6 * place + 6]
    assert (first, last, low, high, broken) == (place * 128, place * 128 + 127, 0.125, 1.0, 0)
    assert blocks[6 * (777 // 128) + 5] == 1


def event(step, *summaries, time=1795500480.5):
    """An event of TensorBoard with summaries."""
    summary = b"".join(field(1, one) for one in summaries)
    return b"\x09" + struct.pack("<d", time) + b"\x10" + varint(step) + field(5, summary)


def varint(number):
    number &= (1 << 64) - 1
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def scalar(tag, value):
    return field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)


def record(data):
    length = struct.pack("<Q", len(data))
    return b"".join(
        (
            length,
            struct.pack("<I", tensorboard_files.masked_crc32c(length)),
            data,
            struct.pack("<I", tensorboard_files.masked_crc32c(data)),
        )
    )


def test_a_damaged_event_file_keeps_what_is_before_the_damage(home, fdl):
    folder = home / "tb/run1"
    folder.mkdir(parents=True)
    events = [event(step, scalar("loss", 1 / (step + 1))) for step in range(4)]
    data = bytearray(b"".join(map(record, events)))
    data[2 * len(record(events[0])) + 20] ^= 255
    (folder / "events.out.tfevents.1.host").write_bytes(bytes(data))
    session = fdl("runs", "import", "tb")
    assert session.exit == 0
    assert "events.out.tfevents.1.host: the record at byte" in session.err
    assert "what follows it is left out" in session.err
    document = json.loads(fdl("runs", "show", "tb-run1", "--json").out)
    assert document["metrics"] == {"loss": 0.5}


def test_steps_of_every_size_and_a_restart(home, fdl):
    folder = home / "tb"
    folder.mkdir()
    steps = [0, 5, 1 << 40, 3, 5]
    events = [event(step, scalar("loss", place)) for place, step in enumerate(steps)]
    (folder / "events.out.tfevents.1.host").write_bytes(b"".join(map(record, events)))
    assert fdl("runs", "import", "tb").exit == 0
    points = array("d", (home / "out/imported/tb/steps/0-0.f64").read_bytes()).tolist()
    assert points == [0, 0, 3, 3, 5, 4, 1 << 40, 2]


def test_without_tensorboard_the_error_says_how_to_install_it(home, fdl):
    folder = home / "tb"
    folder.mkdir()
    (folder / "events.out.tfevents.1.host").write_bytes(record(event(0, scalar("loss", 1))))
    (home / "hidden").mkdir()
    (home / "hidden/tensorboard.py").write_text("raise ImportError")
    session = fdl("runs", "import", "tb", env={"PYTHONPATH": str(home / "hidden")})
    assert session.exit == 1
    assert "can only be read with TensorBoard, which is not installed" in session.err
    assert "pip install 'flodl[tensorboard]'" in session.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "no path is named"),
        (["nowhere"], "nowhere does not exist"),
        (["."], "holds no run that can be imported"),
    ],
)
def test_what_holds_no_run_is_refused(home, fdl, words, problem):
    (home / "notes.db").write_bytes(b"SQLite format 3\0 and then something else")
    session = fdl("runs", "import", *words)
    assert (session.exit, session.out) == (2, "")
    assert problem in session.err


def test_one_broken_run_does_not_stop_the_others(home, fdl):
    written(home / "logs/version_0", {"metrics.csv": LIGHTNING, "hparams.yaml": "a: [1"})
    written(home / "logs/version_1", {"metrics.csv": LIGHTNING, "hparams.yaml": "lr: 1"})
    session = fdl("runs", "import", "logs")
    assert session.exit == 1
    assert "version_0/hparams.yaml cannot be read" in session.err
    assert [path.name for path in (home / "out/imported").iterdir()] == ["logs-version_1"]


def test_run_directories_are_not_imported_again(home, fdl):
    written(home / "logs/version_0", {"metrics.csv": LIGHTNING, "hparams.yaml": "lr: 1"})
    fdl("runs", "import", "logs")
    assert "holds no run that can be imported" in fdl("runs", "import", "out").err
    session = fdl("runs", "import", "logs", "--into", "elsewhere")
    assert session.out.split()[:2] == ["new", "elsewhere/logs-version_0"]


def test_imported_runs_stand_beside_others_in_lists_and_comparisons(home, fdl):
    mlflow_store(home / "mlruns")
    written(home / "logs/version_0", {"metrics.csv": LIGHTNING, "hparams.yaml": "lr: 0.2"})
    fdl("runs", "import", "mlruns", "logs")
    session = fdl("runs", "list", "--where", "lr < 1", "--columns", "lr,imported_from", "--csv")
    assert len(session.out.splitlines()) == 3
    session = fdl("runs", "compare", "bold-fox", "logs-version_0")
    assert session.exit == 0
    assert "0.1  parameter of MLflow" in session.out
    assert fdl("runs", "rm", "bold-fox", "--yes").err == "removed 1 run\n"
    assert (home / "mlruns/0/meta.yaml").is_file()


def test_a_parameter_of_thousands_of_digits_stays_text(home, fdl):
    (params,) = mlflow_store(home / "mlruns").glob("*/*/params")
    (params / "mask").write_text(5000 * "1")
    assert fdl("runs", "import", "mlruns").exit == 0
    document = json.loads(fdl("runs", "show", "bold-fox", "--json").out)
    assert document["config"]["mask"]["value"] == 5000 * "1"
