"""A training with metrics whose names have slashes, blanks, colons and other characters."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from flodl.checkpoint import checkpoint_metadata
from flodl.train import RunDirectory

from .programs import training

NAMES = (
    "loss",
    "val/loss",
    "a/b.c",
    "val:loss",
    "val loss",
    "error %",
    "Verlust/Größe",
    "loss, mean",
)
VALUES = (0.3, 0.1, 0.2)


@pytest.mark.parametrize("name", NAMES)
def test_the_best_epoch_is_kept_and_the_training_ends_by_it(tmp_path: Path, name: str) -> None:
    run = RunDirectory.create(tmp_path)
    values = iter((*VALUES, 0.2, 0.2, 0.2))
    (
        training(epochs=6)
        .eval_fn(lambda _: {name: next(values)})
        .keep_best(name)
        .early_stop(name, window=2, tolerance=1e-6)
        .run_dir(run)
        .run()
    )
    facts = checkpoint_metadata(run.best_checkpoint)
    assert (facts["epoch"], json.loads(facts["metrics"])[name]) == ("2", 0.1)
    with (run.path / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row[name]) for row in rows] == [*VALUES, 0.2]
    assert json.dumps(name) in (run.path / "report.html").read_text(encoding="utf-8")
