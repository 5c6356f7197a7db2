"""Write the same runs in the format of another tool; the program of ``benchmarks.runs_page``.

It runs in the environment of that tool, so it imports nothing of this project:

    python write.py TOOL RUNS.json FOLDER

``RUNS.json`` has a list of runs: name, settings, and the loss of every step.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

EXPERIMENT = "runs"


def tensorboard(runs: list[dict[str, Any]], folder: Path) -> None:
    """Event files, with the settings as hyperparameters."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import summary_v2 as hparams
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for run in runs:
        writer = EventFileWriter(str(folder / run["name"]))
        began = time.time()
        session = hparams.hparams_pb(run["settings"], trial_id=run["name"])
        writer.add_event(Event(wall_time=began, summary=session))
        for step, value in enumerate(run["loss"], 1):
            summary = Summary(value=[Summary.Value(tag="loss", simple_value=value)])
            writer.add_event(Event(wall_time=began + step, step=step, summary=summary))
        writer.close()


def trackio(runs: list[dict[str, Any]], folder: Path) -> None:
    """SQLite files, one call for each run; ``TRACKIO_DIR`` names the folder."""
    import os

    os.environ["TRACKIO_DIR"] = str(folder)
    from trackio.sqlite_storage import SQLiteStorage

    for run in runs:
        SQLiteStorage.bulk_log(
            project=EXPERIMENT,
            run=run["name"],
            metrics_list=[{"loss": value} for value in run["loss"]],
            steps=list(range(1, len(run["loss"]) + 1)),
            config=run["settings"],
        )


def aim(runs: list[dict[str, Any]], folder: Path) -> None:
    """A repository of Aim, without records of the system."""
    from aim import Repo, Run

    Repo.from_path(str(folder), init=True)
    for one in runs:
        run = Run(
            repo=str(folder),
            experiment=EXPERIMENT,
            system_tracking_interval=None,
            log_system_params=False,
            capture_terminal_logs=False,
        )
        run.name = one["name"]
        run["hparams"] = one["settings"]
        for step, value in enumerate(one["loss"], 1):
            run.track(value, name="loss", step=step)
        run.close()


def mlflow(runs: list[dict[str, Any]], folder: Path) -> None:
    """A SQLite store, with at most 1,000 values for each call, as MLflow demands."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    # The page asks for the kind of an experiment that has no such tag.
    tags = {"mlflow.experimentKind": "custom_model_development"}
    experiment = client.create_experiment(EXPERIMENT, str(folder / "artifacts"), tags)
    for one in runs:
        began = int(time.time() * 1000)
        run = client.create_run(experiment, run_name=one["name"]).info.run_id
        params = [Param(name, str(value)) for name, value in one["settings"].items()]
        values = [
            Metric("loss", value, began + step, step) for step, value in enumerate(one["loss"], 1)
        ]
        client.log_batch(run, values[:1000], params)
        for start in range(1000, len(values), 1000):
            client.log_batch(run, values[start : start + 1000])
        client.set_terminated(run)


if __name__ == "__main__":
    tool, source, target = sys.argv[1:]
    Path(target).mkdir(parents=True)
    {"tensorboard": tensorboard, "trackio": trackio, "aim": aim, "mlflow": mlflow}[tool](
        json.loads(Path(source).read_text(encoding="utf-8")), Path(target)
    )
