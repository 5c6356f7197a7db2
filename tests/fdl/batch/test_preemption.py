"""Jobs that are told to end: a checkpoint is written, and the job goes on when it starts again."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fdl.batch.test_slurm import started, wait_for

ROOT = Path(__file__).parents[3]
FOREIGN = """
import os, signal, sys, time
def leave(number, _):
    open("state", "a").write(signal.Signals(number).name + "\\n")
    sys.exit(9)
signal.signal(signal.SIGUSR1, leave)
signal.signal(signal.SIGTERM, leave)
starts = len(open("state").readlines()) if os.path.exists("state") else 0
print("start", starts, flush=True)
time.sleep(60 if starts < 3 else 0)
"""
TRAINS = """
import os, sys, time
import torch
from torch import nn
from flodl import Callback, RunDirectory, TensorDataSet, Trainer, entry

class Tell(Callback):
    def on_step_end(self, run):
        time.sleep(0.02)
        if os.environ.get("RANK", "0") == "0":
            open("steps", "a").write(".")

def loss(net, batch):
    return (net(batch[0]) - batch[1]).square().mean()

def main(_):
    torch.manual_seed(3)
    data = TensorDataSet(torch.randn(240, 4), torch.randn(240, 1))
    def model(_):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.01)
    with RunDirectory.create("runs", config={"lr": 0.01}) as run:
        trained = (
            Trainer.builder(model, sgd, loss)
            .dataset(data).batch_size(4).num_epochs(3).seed(3).callbacks(Tell())
            .run_dir(run)
        ).run().model
        if os.environ.get("RANK", "0") == "0":
            torch.save(trained.state_dict(), run.path / "weights.pt")

if __name__ == "__main__":
    sys.exit(entry(main, None))
"""


def restarts(cluster):
    """How often the job was started again, once the cluster says that it is complete."""
    file = Path(cluster["STAND_IN"], "101.json")
    wait_for(lambda: json.loads(file.read_text())["state"] == "COMPLETED")
    return json.loads(file.read_text())["restarts"]


@pytest.mark.slow
def test_a_foreign_program_gets_the_signal_and_its_job_is_queued_again(program, cluster):
    folder = program(FOREIGN)
    queue = Path(cluster["STAND_IN"])
    process = started(["train"], folder.parent, cluster)
    with process:
        for starts, event in enumerate(("warn", "preempt", "warn")):
            assert process.stdout.readline() == f"start {starts}\n"
            (queue / event).touch()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "start 3\n"), err
    assert (folder / "state").read_text().split() == ["SIGUSR1", "SIGTERM", "SIGUSR1"]
    assert restarts(cluster) == 3


def test_a_job_may_not_be_queued_again_more_often_than_allowed(program, cluster):
    folder = program(FOREIGN, "slurm: {time: 5, requeues: 0}\n")
    process = started(["train"], folder.parent, cluster)
    with process:
        assert process.stdout.readline() == "start 0\n"
        Path(cluster["STAND_IN"], "warn").touch()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, ""), err
    assert "timed-out too many times" in err


def test_a_signal_that_comes_twice_at_once_does_not_end_the_command_of_a_node(program):
    # SLURM tells each process of a step, so the command gets a signal from SLURM and from its task.
    ignores = "import signal, time\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
    folder = program(f"{ignores}open('ready', 'w')\ntime.sleep(2)\n")
    asked = json.dumps({"words": ["train"], "row": None, "records": True})
    line = [sys.executable, "-P", "-m", "fdl.cli.batch_node", asked]
    with subprocess.Popen(line, cwd=folder.parent) as command:
        wait_for((folder / "ready").exists)
        for number in range(200):
            command.send_signal(signal.SIGUSR1)
            sum(range(50 * (number % 20)))  # the second one comes a little later each time
            command.send_signal(signal.SIGUSR1)
            time.sleep(0.002)
    assert command.returncode == 0


def steps(folder):
    file = folder / "steps"
    return len(file.read_text()) if file.exists() else 0


@pytest.mark.slow
def test_a_training_that_is_preempted_twice_ends_with_the_weights_of_one_that_was_not(
    program, cluster, fdl
):
    import torch

    folder = program(TRAINS)
    process = started(["train"], folder.parent, cluster)
    with process:
        for limit in (70, 130):
            wait_for(lambda limit=limit: steps(folder) >= limit, 100)
            Path(cluster["STAND_IN"], "warn").touch()
        out, err = process.communicate(timeout=200)
    assert process.returncode == 0, (out, err)
    assert restarts(cluster) == 2
    assert steps(folder) == 180
    (preempted,) = (folder.parent / "runs").glob("*/weights.pt")
    record = json.loads((preempted.parent / "run.json").read_text())
    assert (record["state"], record["epochs"]) == ("complete", 3)
    found = torch.load(preempted)
    (folder.parent / "runs").rename(folder.parent / "before")
    assert fdl("train", timeout=200).exit == 0
    (alone,) = (folder.parent / "runs").glob("*/weights.pt")
    wanted = torch.load(alone)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(value, found[name]) for name, value in wanted.items())


@pytest.mark.slow
def test_two_machines_train_together_and_go_on_after_a_preemption(program, cluster):
    folder = program(TRAINS, "slurm: {nodes: 2}\nddp: {ranks: 2}\n")
    process = started(["train"], folder.parent, cluster)
    with process:
        wait_for(lambda: steps(folder) >= 5, 100)
        Path(cluster["STAND_IN"], "warn").touch()
        out, err = process.communicate(timeout=200)
    assert process.returncode == 0, (out, err)
    assert restarts(cluster) == 1
    (record,) = (folder.parent / "runs").glob("*/run.json")
    run = json.loads(record.read_text())
    assert (run["state"], run["epochs"]) == ("complete", 3)
    assert "resumed from" in out + err
    assert re.search(r"share \d+/\d+/\d+/\d+ ", out + err), "four ranks"
