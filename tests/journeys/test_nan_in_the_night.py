"""Trainings that break in the night: what the terminal says leads to the line that must change."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.fdl.screen import plain
from tests.journeys.person import Typed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

MANIFEST = """\
commands:
  train:
"""
SETTINGS = """\
entry: python main.py
training:
  epochs: 3
  lr: 0.05
  guards: true
output:
  dir: runs/train
commands:
  night:
    training:
      lr: 50
"""
PROGRAM = '''\
"""Fit the response of a sensor."""

import csv
import sys

import torch
from fdl import FdlArgs, option
from flodl import RunDirectory, Trainer, entry
from torch import nn


class Args(FdlArgs):
    """Fit the response of a sensor."""

    epochs: int = option(default=3, help="Passes over the measurements")
    lr: float = option(default=0.05, help="Learning rate")
    output: str = option(default="runs/train", help="Folder of the runs")


def measurements():
    with open("measurements.csv", newline="") as file:
        _, *rows = csv.reader(file)
    table = torch.tensor([[float(cell) for cell in row] for row in rows])
    return table[:, :1], table[:, 1:]


def model(device):
    return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)


def step(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def main(args: Args) -> None:
    trainer = (
        Trainer.builder(model, lambda parameters: torch.optim.SGD(parameters, lr=args.lr), step)
        .dataset(measurements())
        .batch_size(16)
        .num_epochs(args.epochs)
    )
    with RunDirectory.create(args.output, config=args.resolved()) as run:
        trainer.run_dir(run).run()


if __name__ == "__main__":
    sys.exit(entry(main, Args.parse_or_schema()))
'''
NAME = r"\d{4}-\d\d-\d\dT[\d-]+"
"""What a run is called."""

SAMPLES = 320
BROKEN = 210


@pytest.fixture
def somebody(person):
    """A person with a training that is known to be good: it ran in the morning."""
    train = person.folder / "train"
    train.mkdir()
    (person.folder / "fdl.yml").write_text(MANIFEST)
    (train / "fdl.yml").write_text(SETTINGS)
    (train / "main.py").write_text(PROGRAM)
    measure(train / "measurements.csv")
    morning = person.type("fdl train")
    assert "3 epochs in" in morning.text
    assert "warning" not in morning.text
    return person


def measure(file: Path) -> None:
    """Write what the sensor measured."""
    noise = random.Random(7)
    rows = ["voltage,response"]
    for _ in range(SAMPLES):
        voltage = noise.uniform(-2, 2)
        rows.append(f"{voltage:.4f},{voltage**2 / 2 + noise.gauss(0, 0.05):.4f}")
    file.write_text("\n".join(rows) + "\n")


def only(pattern: str, text: str) -> re.Match[str]:
    """The only place of a text that fits a pattern."""
    (found,) = re.finditer(pattern, text)
    return found


def flowing(typed: Typed) -> str:
    """What a command printed, without the ends of its lines."""
    return " ".join(plain(typed.raw).split())


def test_a_learning_rate_that_diverges_is_found_in_its_file_and_line(somebody):
    night = somebody.type("fdl train night", exits=1)
    told = flowing(night)
    # It went back, tried again with less, and gave up; every attempt names step and samples.
    for attempt in (1, 2, 3):
        only(
            r"the loss is inf in epoch 0, batch \d+ \(both counted from 0\); back from step \d+ to "
            rf"\d+, without batch[^(]+\(samples [\d, ]+[^)]*\)[^;]*; attempt {attempt}\b",
            told,
        )
    error = told.partition("error: ")[2]
    assert "the guards give up after 3 of 3 attempts" in error
    assert "Lower the learning rate" in error

    listed = somebody.type("fdl runs list").text
    morning, _ = re.findall(NAME, listed)
    assert re.findall(r"complete|diverged", listed) == ["complete", "diverged"]

    # The person does not know yet what is different tonight.
    differs = somebody.type("fdl runs diff best:loss last", exits=1).text
    place = only(
        r"Cause: lr 0\.05 \(train/fdl\.yml:4:7\) against 50\.0 \((\S+):(\d+):(\d+)\)", differs
    )
    change(somebody.folder / place[1], int(place[2]), int(place[3]), "50", "0.05")

    again = somebody.type("fdl train night")
    assert "3 epochs in" in again.text
    assert "warning" not in again.text
    assert "The runs agree." in somebody.type(f"fdl runs diff {morning} last").text


def change(file: Path, line: int, column: int, old: str, new: str) -> None:
    """Replace what is written at a place, in an editor."""
    lines = file.read_text().splitlines(keepends=True)
    before, after = lines[line - 1][: column - 1], lines[line - 1][column - 1 :]
    assert after.strip() == old
    lines[line - 1] = before + after.replace(old, new)
    file.write_text("".join(lines))


def test_a_sample_that_breaks_the_loss_is_named_and_mended(somebody):
    file = somebody.folder / "train/measurements.csv"
    good = file.read_text().splitlines()[BROKEN + 1]
    write_row(file, BROKEN, good.partition(",")[0] + ",nan")

    night = somebody.type("fdl train")
    told = flowing(night)
    assert "3 epochs in" in told, "one bad batch does not end the night"
    found = re.findall(r"the loss is nan in epoch (\d), batch \d+ .*?samples ([\d, ]+)\)", told)
    assert [epoch for epoch, _ in found] == ["0", "1", "2"]
    batches = [set(map(int, samples.split(","))) for _, samples in found]
    assert BROKEN in set.intersection(*batches)

    morning, _ = re.findall(NAME, somebody.type("fdl runs list").text)
    differs = somebody.type(f"fdl runs diff {morning} last", exits=1).text
    assert "Cause: the data was changed" in differs
    sample = int(only(r"sample (\d+) has other content", differs)[1])
    only(r"the guards of the second run left out the batch: the loss is nan", differs)

    # Samples count from 0, and the file has a heading.
    assert write_row(file, sample, good).endswith(",nan")
    again = somebody.type("fdl train")
    assert "warning" not in again.text
    assert "The runs agree." in somebody.type(f"fdl runs diff {morning} last").text


def write_row(file: Path, sample: int, row: str) -> str:
    """Change the row of a sample, in an editor; returns what was there."""
    rows = file.read_text().splitlines()
    old, rows[sample + 1] = rows[sample + 1], row
    file.write_text("\n".join(rows) + "\n")
    return old
