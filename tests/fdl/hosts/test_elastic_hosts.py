"""``fdl --on HOST,HOST train --ranks 1 --elastic``: a host is lost, and the others train on."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flodl.train.run.verify import verify_run
from tests.fdl.hosts.hosts import Hosts
from tests.fdl.hosts.test_hosts import TRAIN, Typed

Make = Callable[..., Path]

pytest.importorskip("torchft", reason="torchft is not installed")

PROGRAM = """
import os, time
import torch
from torch import nn
from flodl import RunDirectory, TensorDataSet, Trainer

NAME = os.environ["FLODL_HOST"]
inputs = torch.randn(400, 4, generator=torch.Generator().manual_seed(1))


def model(device):
    return nn.Linear(4, 1)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def loss(net, batch):
    time.sleep(0.02)
    print("step on", NAME, flush=True)
    return (net(batch[0]) - batch[1]).square().mean()


if __name__ == "__main__":
    (
        Trainer.builder(model, optimizer, loss)
        .dataset(TensorDataSet(inputs, inputs.sum(1, keepdim=True)))
        .batch_size(8).num_epochs(12).run_dir(RunDirectory.create("runs"))
        .run()
    )
"""
FILES = {
    "fdl.yml": "commands:\n  train: {path: t}\n",
    "t/fdl.yml": f"entry: {sys.executable} main.py\nddp: {{ranks: 1, elastic: true}}\n",
    "t/main.py": PROGRAM,
}


@pytest.mark.slow
def test_a_lost_host_does_not_end_the_training(two: Hosts, project: Make) -> None:
    folder = project(FILES)
    typed = Typed(two.popen("--on", "alpha,beta", "train", cwd=folder))
    for name in ("alpha", "beta"):
        typed.wait_for(f"step on {name}")
    for pid in two.pids("beta"):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"main.py" in words:
            os.kill(pid, signal.SIGKILL)
    assert typed.end() == 0, typed.texts
    said = typed.texts[1]
    assert "beta (host 2 of 2): it is lost with exit code 137; the others train on" in said
    assert "FLODL_JOIN=ADDRESS fdl train" in said
    (run,) = (one.parent for one in folder.glob("runs/**/run.json"))
    assert not (folder.parent / "beta/runs").exists()
    assert json.loads((run / "run.json").read_text())["state"] == "complete"
    assert verify_run(run).proven


def test_elastic_ranks_are_offered_where_all_hosts_can_have_them(two: Hosts, project: Make) -> None:
    code, _, err = two.fdl("plan", "--on", "alpha,beta", "train", cwd=project(TRAIN))
    assert code == 0, err
    assert (
        "all hosts have torchft: with `--ranks 1 --elastic`, one may be lost during training" in err
    )
