"""Runs in MLflow's offline store, read back by MLflow's own client."""

from __future__ import annotations

import importlib.util
import json
import math
import os

import pytest

from tests import fork_server

PROGRAM = """
import json, math
from pathlib import Path
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

from mlflow import MlflowClient

client = MlflowClient(tracking_uri=Path("store").absolute().as_uri())
experiment = client.get_experiment_by_name("digits")
(run,) = client.search_runs([experiment.experiment_id])
metrics = ("loss", "top_1", "step/loss")
history = {name: client.get_metric_history(run.info.run_id, name) for name in metrics}
with open("found.json", "w") as file:
    json.dump(
        {
            "info": [run.info.run_name, run.info.status],
            "params": run.data.params,
            "tags": run.data.tags,
            "metrics": run.data.metrics,
            "history": {n: [(one.step, one.value) for one in h] for n, h in history.items()},
        },
        file,
    )
"""


@pytest.mark.slow
def test_a_run_is_in_the_offline_store(tmp_path):
    if importlib.util.find_spec("mlflow") is None:
        pytest.skip("needs mlflow")
    more = {"GIT_PYTHON_REFRESH": "quiet", "MLFLOW_ALLOW_FILE_STORE": "true"}
    env = {**os.environ, **more}
    done = fork_server.python("-c", PROGRAM, cwd=tmp_path, env=env, torch=True, abrupt=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["info"] == ["2026-01-31T10-00-00", "FAILED"]
    assert found["params"]["lr"] == "0.1"
    assert found["params"]["layer.149"] == "149"
    assert found["params"]["odd name_"] == "x" * 6000
    assert found["tags"]["flodl.hash"] == "cafe"
    assert found["tags"]["environment.torch"] == "2"
    assert found["history"]["loss"] == [[1, 0.5], [2, 0.25]]
    assert len(found["history"]["top_1"]) == 2
    steps = found["history"]["step/loss"]
    assert [step for step, _ in steps] == list(range(2500))
    assert math.isnan(steps[1][1])
    assert found["tags"]["note"] == "late"
    assert found["metrics"]["roc/auc"] == 0.75
    assert found["metrics"]["pr/average_precision"] == pytest.approx(5 / 6)
    [poem] = (tmp_path / "store").rglob("artifacts/media/text/poem/step-3.txt")
    assert poem.read_text() == "one line"
