"""A project whose program is swept."""

import json
from pathlib import Path

import pytest

SCORE = """
import argparse, json, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--model", default="small")
args = parser.parse_args()
print("lr", args.lr, "seed", args.seed, "model", args.model)
if args.seed == 13 and not os.path.exists("../mended"):
    sys.exit(3)
file = os.path.join(os.environ["FDL_RUN_DIR"], "metrics.json")
with open(file, "w") as stream:
    json.dump({"val_loss": (args.lr - 0.25) ** 2}, stream)
"""
"""A program without run directories. It fails with seed 13 until a file `mended` is there."""

MANIFEST = """
commands: {train: {path: train}}
sweeps:
  rates: {command: train quick, each: {lr: [0.5, 0.25], seed: 1..2}, jobs: 2}
"""

TRAIN = """
entry: python score.py
commands:
  quick: {options: {model: big}}
"""

SCHEMA = """
schema:
  strict: true
  options:
    lr: {type: float}
    seed: {type: int, short: s}
    model: {type: string, choices: [small, big]}
"""


@pytest.fixture
def scores(project):
    """The project on disk, without a schema of its program."""
    return project({"fdl.yml": MANIFEST, "train/fdl.yml": TRAIN, "train/score.py": SCORE})


@pytest.fixture
def strict(project):
    """The same with a strict schema."""
    return project({"fdl.yml": MANIFEST, "train/fdl.yml": TRAIN + SCHEMA, "train/score.py": SCORE})


@pytest.fixture
def command_lines(fdl):
    """The tokens that the runs of a sweep start: ``command_lines("train", "--each", "lr=1,2")``."""

    def plans(*args):
        done = fdl("--dry-run", "--json", *args)
        assert done.exit == 0, done.err
        return [job["argv"] for job in json.loads(done.out)["jobs"]]

    return plans


def states(folder: Path) -> dict[str, str]:
    """Name -> state of the runs of the only sweep below a folder."""
    (file,) = folder.rglob("sweep.json")
    return {row["name"]: row["state"] for row in json.loads(file.read_text())["runs"]}
