"""Runs in MLflow's offline store, read back by MLflow's own client."""

from __future__ import annotations

import math
import os

import pytest

from tests import fork_server

PROGRAM = """
import math
from flodl.monitor import Monitor
from flodl.monitor.mlflow import MlflowSink
from flodl.monitor.records import StepSeries

monitor = Monitor(2, terminal=False)
monitor.set_identity(run="2026-01-31T10-00-00", hash="cafe")
config = {f"layer.{n}": n for n in range(150)}
config |= {"lr": {"value": 0.1, "origin": "fdl.yml:3:7"}, "odd name!": "x" * 7000}
monitor.set_metadata({"config": config, "environment": {"torch": "2"}})
watching = monitor.add_sink(MlflowSink("store", experiment="digits"))
monitor.log(0, 2.0, {"loss": 0.5, "top@1": 0.25})
monitor.log_steps([StepSeries("loss", list(range(2500)), [1.0, math.nan, *[0.5] * 2498])])
monitor.flush()
monitor.set_metadata({"note": "late"})
monitor.text("poem", "one line", step=3)
monitor.roc("roc", [0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], step=3)
monitor.pr("pr", [0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], step=3)
monitor.log(1, 2.0, {"loss": 0.25, "top@1": 0.5})
monitor.finish("diverged")
assert watching.join(200)
assert watching.error is None, watching.error
"""


def test_a_run_is_in_the_offline_store(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    env = {**os.environ, "GIT_PYTHON_REFRESH": "quiet"}
    done = fork_server.python("-c", PROGRAM, cwd=tmp_path, env=env, torch=True, abrupt=True)
    assert done.returncode == 0, done.stderr
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "store").as_uri())
    experiment = client.get_experiment_by_name("digits")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("2026-01-31T10-00-00", "FAILED")
    assert run.data.params["lr"] == "0.1"
    assert run.data.params["layer.149"] == "149"
    assert run.data.params["odd name_"] == "x" * 6000
    assert run.data.tags["flodl.hash"] == "cafe"
    assert run.data.tags["environment.torch"] == "2"
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.value) for one in losses] == [(1, 0.5), (2, 0.25)]
    assert len(client.get_metric_history(run.info.run_id, "top_1")) == 2
    steps = client.get_metric_history(run.info.run_id, "step/loss")
    assert [one.step for one in steps] == list(range(2500))
    assert math.isnan(steps[1].value)
    assert run.data.tags["note"] == "late"
    assert run.data.metrics["roc/auc"] == 0.75
    assert run.data.metrics["pr/average_precision"] == pytest.approx(5 / 6)
    [poem] = (tmp_path / "store").rglob("artifacts/media/text/poem/step-3.txt")
    assert poem.read_text() == "one line"
