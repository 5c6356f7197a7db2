"""Jobs that are told to end: a checkpoint is written, and the job goes on when it starts again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from tests.fdl.batch.stand_in import installed

FOREIGN = """
import os, signal, sys, time
def leave(*_):
    with open("state", "a") as state:
        state.write("left\\n")
    sys.exit(9)
signal.signal(signal.SIGUSR1, leave)
steps = open("state").read().count("left") if os.path.exists("state") else 0
print("step", steps, flush=True)
time.sleep(60 if steps < 2 else 0)
"""
TRAINS = """
import os, time
import torch
from torch import nn
from flodl import Trainer
from flodl.data import TensorDataSet
from flodl.train import TrainArgs, training_main

def model(device):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)).to(device)

def main(args: TrainArgs):
    ...
"""


def test_a_foreign_program_gets_the_signal_and_its_job_is_queued_again(program, fdl, tmp_path):
    folder = program(FOREIGN, "slurm: {time: 1}\n")
    # A minute lasts 1.6 seconds here, and the signal comes 90 of its 60 seconds before the end.
    cluster = installed(tmp_path / "cluster", minute=1.0)
    done = fdl("--on", "slurm", "train", env=cluster)
    assert (done.exit, done.out.split("\n")) == (0, ["step 0", "step 1", "step 2", ""]), done.err
    assert (folder / "state").read_text() == "left\nleft\n"
    job = json.loads(Path(cluster["STAND_IN"], "101.json").read_text())
    assert (job["state"], job["restarts"]) == ("COMPLETED", 2)
