"""Media in TensorBoard, MLflow and Weights & Biases, read back with their own readers."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from flodl.errors import FlodlError
from flodl.monitor import Monitor
from flodl.monitor.tensorboard import TensorBoardSink
from tests import fork_server

from .wandb_files import history, offline_files, offline_records

EVIL = "</script><script>alert(1)</script>"
PROGRAM = f"""
import sys
import torch
from flodl.monitor import Monitor, MlflowSink, WandbSink
from flodl.monitor.records import StepSeries

def record(sink):
    monitor = Monitor(2, terminal=False)
    monitor.set_identity(run="2026-01-31T10-00-00", hash="cafe")
    config = {{"lr": {{"value": 0.1, "origin": "fdl.yml:3:7"}}, "layers": 3}}
    monitor.set_metadata({{"config": config, "environment": {{"torch": "2"}}}})
    watching = monitor.add_sink(sink)
    monitor.image("samples/digits", torch.zeros(3, 4, 5), step=10)
    monitor.histogram("weights/w", torch.tensor([0.0, 1.0, float("nan")]), step=10)
    monitor.histogram("weights/w", torch.tensor([0.0, 2.0]), step=20)
    monitor.text("generated", "line 1\\nline 2", step=10)
    monitor.table("answers", {{"q": ["a", {EVIL!r}], "n": [1, 2.5]}}, step=10)
    monitor.confusion_matrix("cm", [0, 1, 1], [0, 1, 0], classes=["cat", "dog"], step=10)
    monitor.roc("roc", [0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], step=10)
    monitor.pr("pr", [0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], step=10)
    monitor.log(0, 2.0, {{"loss": 0.5}})
    monitor.log_steps([StepSeries("loss", [0, 1], [3.0, float("nan")])])
    monitor.log(1, 2.0, {{"loss": 0.25}})
    monitor.finish("diverged", timeout=100)
    assert watching.join(200)
    assert watching.error is None, watching.error
"""


@pytest.mark.filterwarnings("default")
def test_tensorboard(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pillow = pytest.importorskip("PIL.Image")
    monitor = Monitor(1, terminal=False)
    watching = monitor.add_sink(TensorBoardSink(tmp_path))
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8)
    monitor.image("samples/a", pixels, step=7)
    values = torch.tensor([0.0, 1.0, 2.0, 4.0, float("nan")])
    monitor.histogram("weights/w", values, bins=4, step=7)
    monitor.text("generated", f"# no heading\n{EVIL}", step=7)
    monitor.table("answers", [{"q": "a|b", "n": 0.5}], step=7)
    monitor.confusion_matrix("cm", [0, 1, 1], [0, 1, 0], classes=["cat", "dog"], step=7)
    monitor.roc("roc", [0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], step=7)
    monitor.pr("pr", [0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], step=7)
    monitor.finish(timeout=100)
    assert watching.join(60)
    assert watching.error is None
    found = reader.EventAccumulator(str(tmp_path))
    found.Reload()
    [image] = found.Images("samples/a")
    assert (image.step, image.width, image.height) == (7, 5, 6)
    read = np.asarray(pillow.open(io.BytesIO(image.encoded_image_string)))
    assert (read == pixels).all()
    [histogram] = found.Histograms("weights/w")
    value = histogram.histogram_value
    assert (value.min, value.max, value.num, value.sum, value.sum_squares) == (0, 4, 4, 7, 21)
    assert (value.bucket_limit, value.bucket) == ([1, 2, 3, 4], [1, 1, 1, 1])
    assert found.Scalars("weights/w/not_finite")[0].value == 1
    text = {
        tag: found.Tensors(tag)[-1].tensor_proto for tag in found.Tags()["tensors"]
    }  # fmt: skip
    shown = text["generated/text_summary"].string_val[0].decode()
    assert shown == f"    # no heading\n    {EVIL}"
    assert "| a\\|b | 0.5000 |" in text["answers/text_summary"].string_val[0].decode()
    assert "| dog | 1 | 1 |" in text["cm/text_summary"].string_val[0].decode()
    assert found.Images("cm")
    assert "roc" not in found.Tags()["images"]
    assert found.Scalars("roc/auc")[0].value == 0.75
    assert found.Scalars("pr/average_precision")[0].value == pytest.approx(5 / 6)
    recall = list(text["pr"].float_val)[-5:]
    assert recall == [1.0, 1.0, 0.5, 0.5, 0.0]


def run(tmp_path: Path, sink: str, **environ: str) -> None:
    done = fork_server.python(
        *("-c", f"{PROGRAM}\nrecord({sink})"),
        cwd=tmp_path,
        env={**os.environ, "GIT_PYTHON_REFRESH": "quiet", **environ},
        torch=True,
        abrupt=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_mlflow(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run(tmp_path, "MlflowSink('store')")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "store").as_uri())
    experiment = client.get_experiment_by_name("flodl")
    [found] = client.search_runs([experiment.experiment_id])
    [media] = (tmp_path / "store").rglob("artifacts/media")
    names = {path.relative_to(media).as_posix() for path in media.rglob("*") if path.is_file()}
    assert names == {
        "index.json",
        "image/samples/digits/step-10.png",
        "histogram/weights/w.json",
        "text/generated/step-10.txt",
        "table/answers/step-10.json",
        "confusion_matrix/cm/step-10.json",
        "roc/roc/step-10.json",
        "pr/pr/step-10.json",
    }
    histograms = json.loads((media / "histogram/weights/w.json").read_text())
    assert [(one["step"], one["high"], one["nan"]) for one in histograms] == [
        (10, 1, 1),
        (20, 2, 0),
    ]
    assert found.data.metrics["roc/auc"] == 0.75


@pytest.mark.slow
def test_weights_and_biases_offline(tmp_path):
    pytest.importorskip("wandb")
    run(tmp_path, "WandbSink('digits', run_id='my-run')", WANDB_MODE="offline")
    records = offline_records(tmp_path)
    [begin] = [one.run for one in records if one.WhichOneof("record_type") == "run"][:1]
    assert (begin.run_id, begin.project) == ("my-run", "digits")
    assert begin.display_name == "2026-01-31T10-00-00"
    config = {}
    for one in records:
        for item in one.config.update:
            config[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        for item in one.run.config.update:
            config[item.key] = json.loads(item.value_json)
    rows = history(tmp_path)
    assert (config["lr"], config["layers"]) == (0.1, 3)
    assert config["flodl"]["environment"] == {"torch": "2"}
    assert rows["epoch/loss"] == [0.5, 0.25]
    assert rows["step/loss"][0] == 3.0
    assert rows["samples/digits"][0]["_type"] == "image-file"
    assert [one["_type"] for one in rows["weights/w"]] == ["histogram", "histogram"]
    assert rows["weights/w/not_finite"] == [1]
    assert rows["roc/auc"] == [0.75]
    tables = {path.name.split("_")[0] for path in tmp_path.rglob("*.table.json")}
    assert {"generated", "answers", "cm", "roc", "pr"} <= tables
    [answers] = tmp_path.rglob("answers*.table.json")
    assert json.loads(answers.read_text())["data"] == [["a", 1], [EVIL, 2.5]]
    [end] = [one.exit for one in records if one.WhichOneof("record_type") == "exit"]
    assert end.exit_code == 1, "a diverged run did not succeed"


CONTINUED = """
import sys
from flodl.monitor import Monitor, WandbSink

def train(first, epochs, before):
    monitor = Monitor(3, terminal=False)
    if before:
        monitor.restore(before)
    watching = monitor.add_sink(WandbSink("digits", run_id="night"))
    for epoch in range(first, first + epochs):
        monitor.log(epoch, 2.0 + epoch / 3, {"loss": 1 / (epoch + 3)})
    monitor.finish(timeout=100)
    assert watching.join(200)
    assert watching.error is None, watching.error
    return monitor.history

before = train(0, 2, [])
train(2, 1, before)
"""


@pytest.mark.slow
def test_a_continued_run_of_weights_and_biases_has_each_epoch_once(tmp_path):
    pytest.importorskip("wandb")
    env = {**os.environ, "WANDB_MODE": "offline"}
    done = fork_server.python("-c", CONTINUED, cwd=tmp_path, env=env, torch=True)
    assert done.returncode == 0, done.stderr
    first, second = offline_files(tmp_path)
    for file in (first, second):
        [begin] = [one.run for one in offline_records(file) if one.HasField("run")][:1]
        assert begin.run_id == "night", "wandb sync joins the two"
    assert history(first)["epoch"] == [1, 2]
    assert history(second)["epoch"] == [3]
    assert history(second)["epoch/loss"] == [1 / 5]


def test_weights_and_biases_without_a_key_asks_nothing(tmp_path):
    pytest.importorskip("wandb")
    program = f"{PROGRAM}\nrecord(WandbSink(mode='online'))"
    environ = {name: text for name, text in os.environ.items() if not name.startswith("WANDB")}
    done = fork_server.python(
        *("-c", program),
        cwd=tmp_path,
        env={**environ, "HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc")},
        torch=True,
        abrupt=True,
    )
    assert "is detached, training continues: Weights & Biases has no API key" in done.stderr


def test_without_the_package_the_error_names_what_to_install(monkeypatch):
    from flodl.monitor import sinks, wandb

    monkeypatch.setattr(sinks, "find_spec", lambda _: None)
    with pytest.raises(FlodlError, match="pip install wandb"):
        wandb.WandbSink()
