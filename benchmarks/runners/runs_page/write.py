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


if __name__ == "__main__":
    tool, source, target = sys.argv[1:]
    Path(target).mkdir(parents=True)
    {"tensorboard": tensorboard, "trackio": trackio}[tool](
        json.loads(Path(source).read_text(encoding="utf-8")), Path(target)
    )
