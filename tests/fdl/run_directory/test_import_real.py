"""``fdl runs import`` of files that TensorBoard, MLflow and Lightning themselves wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

TENSORBOARD = """
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.plugins.scalar.metadata import create_summary_metadata
from tensorboard.util.tensor_util import make_tensor_proto
import numpy as np

writer = EventFileWriter("tb/one")
for step in range(300):
    old = Summary.Value(tag="loss", simple_value=1 / (step + 1))
    # Only the first value of a tag has its metadata.
    about = create_summary_metadata("", "") if step == 0 else None
    new = Summary.Value(tag="acc", tensor=make_tensor_proto(np.float32(step)), metadata=about)
    writer.add_event(Event(wall_time=1.7e9 + step, step=step, summary=Summary(value=[old, new])))
pixels = make_tensor_proto(np.zeros((2, 3), np.float32))
histogram = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="histograms"))
value = Summary.Value(tag="weights", tensor=pixels, metadata=histogram)
writer.add_event(Event(wall_time=1.7e9, step=1, summary=Summary(value=[value])))
writer.close()
"""

PYTORCH = """
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter("tb/two")
for step in range(10):
    writer.add_scalar("loss", 1 / (step + 1), step)
    writer.add_scalar("new", step, step, new_style=True)
    writer.add_scalar("double", step / 3, step, new_style=True, double_precision=True)
writer.add_hparams({"lr": 0.1, "opt": "adam", "flag": True, "depth": 3}, {"hp/loss": 0.5})
writer.add_text("words", "hello", 1)
writer.close()
"""

MLFLOW = """
import math, sys
from mlflow import MlflowClient

client = MlflowClient(tracking_uri=sys.argv[1])
experiment = client.create_experiment("digits")
run = client.create_run(experiment, run_name="bold-fox").info.run_id
client.log_param(run, "lr", 0.1)
for step in range(5):
    client.log_metric(run, "train/loss", 1 / (step + 1), step=step)
client.log_metric(run, "bad", math.nan, step=1)
client.log_metric(run, "bad", math.inf, step=2)
client.set_tag(run, "mlflow.note.content", "a note")
client.set_terminated(run, "FAILED")
client.delete_run(client.create_run(experiment, run_name="gone").info.run_id)
"""

LIGHTNING = """
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

for kind in (CSVLogger, TensorBoardLogger):
    logger = kind(kind.__name__, name="logs")
    logger.log_hyperparams({"lr": 0.1, "layers": [1, 2], "inner": {"a": 1}})
    step = 0
    for epoch in range(3):
        for _ in range(4):
            logger.log_metrics({"train_loss": 1 / (step + 1), "epoch": epoch}, step=step)
            step += 1
        logger.log_metrics({"val_loss": 1 / (epoch + 1), "epoch": epoch}, step=step - 1)
    logger.save()
    logger.finalize("success")
"""

FLODL = """
from flodl.monitor import Monitor
from flodl.monitor.records import StepSeries
from flodl.monitor.tensorboard import TensorBoardSink

monitor = Monitor(2, terminal=False)
monitor.add_sink(TensorBoardSink("tb/flodl"))
monitor.log(0, 2.0, {"loss": 0.5})
monitor.log_steps([StepSeries("loss", list(range(20)), [0.5] * 20)])
monitor.log(1, 2.0, {"loss": 0.25})
monitor.finish("complete")
"""


@pytest.fixture
def home(project):
    """A project whose runs are in ``out``."""
    return project({"fdl.yml": "entry: python main.py\noutput: {dir: out}"})


def made(program, folder, *words):
    """Run a program that logs, in a process of its own."""
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *words],
        cwd=folder,
        check=True,
        capture_output=True,
        env={**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true", "GIT_PYTHON_REFRESH": "quiet"},
    )


def shown(fdl, name):
    session = fdl("runs", "show", name, "--json")
    assert session.exit == 0, session.err
    return json.loads(session.out)


def test_scalars_of_tensorboard_in_both_forms(home, fdl):
    made(TENSORBOARD, home)
    session = fdl("runs", "import", "tb")
    assert (session.exit, session.err) == (0, "1 run: 1 new\n")
    document = shown(fdl, "tb-one")
    assert document["metrics"] == {"loss": pytest.approx(1 / 300), "acc": 299}
    assert document["best"]["acc"] == {"value": 299, "step": 299}
    # The event that names the version of the file has the time of its writing.
    assert document["seconds"] >= 299
    index = json.loads((home / "out/imported/tb-one/steps/index.json").read_text())
    assert list(index["curves"]) == ["loss", "acc"]
    assert fdl("runs", "import", "tb").err == "1 run: 1 unchanged\n"


@pytest.mark.slow
def test_pytorch_writes_settings_beside_scalars(home, fdl):
    made(PYTORCH, home)
    assert fdl("runs", "import", "tb").err == "1 run: 1 new\n"
    document = shown(fdl, "tb-two")
    assert document["metrics"] == {
        "loss": pytest.approx(0.1), "new": 9, "double": 3, "hp/loss": 0.5,
    }  # fmt: skip
    assert {name: one["value"] for name, one in document["config"].items()} == {
        "lr": 0.1, "opt": "adam", "flag": True, "depth": 3,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("store", ["mlruns", "mlflow.db"])
def test_stores_of_mlflow(home, fdl, store):
    uri = f"sqlite:///{home}/mlflow.db" if store == "mlflow.db" else (home / store).as_uri()
    made(MLFLOW, home, uri)
    assert fdl("runs", "import", store).err == "1 run: 1 new\n"
    document = shown(fdl, "bold-fox")
    assert (document["state"], document["note"]) == ("failed", "a note")
    assert document["config"]["lr"]["value"] == 0.1
    assert document["metrics"]["train/loss"] == 0.2
    table = (home / "out/imported/bold-fox/metrics.csv").read_text().splitlines()
    place = table[0].split(",").index("bad")
    assert [line.split(",")[place] for line in table[1:]] == ["", "nan", "inf", "", ""]
    assert fdl("runs", "import", store).err == "1 run: 1 unchanged\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["CSVLogger", "TensorBoardLogger"])
def test_logs_of_lightning(home, fdl, kind):
    made(LIGHTNING, home)
    assert fdl("runs", "import", kind).err == "1 run: 1 new\n"
    document = shown(fdl, f"{kind}-logs-version_0")
    assert document["epochs"] == 3
    # For TensorBoard, Lightning itself writes a metric that stands for all hyperparameters.
    own = {"hp_metric": -1.0} if kind == "TensorBoardLogger" else {}
    assert document["metrics"] == {
        "train_loss": pytest.approx(1 / 12), "val_loss": pytest.approx(1 / 3), **own,
    }  # fmt: skip
    assert document["best"]["val_loss"] == {"value": pytest.approx(1 / 3), "epoch": 3}
    assert document["config"]["layers"]["value"] == [1, 2]


@pytest.mark.slow
def test_what_flodl_wrote_for_tensorboard_has_its_epochs(home, fdl):
    made(FLODL, home)
    assert fdl("runs", "import", "tb").err == "1 run: 1 new\n"
    document = shown(fdl, "tb-flodl")
    assert document["epochs"] == 2
    assert document["metrics"]["loss"] == 0.25
    index = json.loads((home / "out/imported/tb-flodl/steps/index.json").read_text())
    assert list(index["curves"]) == ["loss"]
