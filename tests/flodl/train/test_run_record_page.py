"""docs/reference/run-record.md names every field that a real run writes."""

import json
import re
from pathlib import Path

import torch
from torch import nn

from flodl import RunDirectory, TensorDataSet, Trainer

PAGE = (Path(__file__).parents[3] / "docs/reference/run-record.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def documented(text: str) -> set[str]:
    """Names in code in the first column of the tables of a text."""
    rows = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_the_page_has_every_file_and_every_field_of_a_real_run(tmp_path):
    data = TensorDataSet(torch.zeros(8, 1), names=["x"])
    trainer = Trainer.builder(
        lambda device: nn.Linear(1, 1).to(device),
        torch.optim.SGD,
        lambda model, batch: model(batch["x"]).square().mean(),
    )
    trainer.dataset(data).batch_size(4).num_epochs(1).engine("eager")
    run = RunDirectory.create(tmp_path)
    trainer.run_dir(run).run().join()

    files = documented(PAGE.partition("\n## ")[0])
    written = {file.name for file in run.path.iterdir()}
    assert written <= files
    assert {"run.json", "metrics.csv", "steps.trace", "last.fdl", "model.fdl"} <= written

    record = json.loads((run.path / "run.json").read_text())
    assert set(record) <= documented(section("run.json"))
    machine = json.loads((run.path / "environment.json").read_text())
    assert set(machine) <= set(re.findall(r"`(\w+)`", section("config.json and environment.json")))
    head, _ = (run.path / "metrics.csv").read_text().splitlines()
    named = documented(section("metrics.csv"))
    assert [column for column in head.split(",") if column not in named] == ["loss"]
