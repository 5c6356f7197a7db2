"""A training that is killed again and again ends where one ends that never was."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from flodl.checkpoint import checkpoint_metadata, load_checkpoint_file
from flodl.train import RunDirectory

from .programs import network

# Imports torch once, and what the first optimizer imports; each line of its input forks a process
# that trains in a new run directory under the given root, continuing the newest one where there is
# a checkpoint.
NURSERY = """
import os, sys, torch
from flodl.data import TensorDataSet
from flodl import Trainer
from flodl.train import RunDirectory, record_scalar
from tests.flodl.train.programs import line, network, squared_error

torch.set_num_threads(1)
torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])

def train_fn(model, batch):
    loss = squared_error(model, batch)
    record_scalar("twice", 2 * loss)
    return loss

def train(root):
    resume = "last" if list(root.glob("*/last.fdl")) else None
    with RunDirectory.create(root, resume=resume) as run:
        handle = (
            Trainer.builder(network, lambda p: torch.optim.Adam(p, lr=0.01), train_fn)
            .dataset(line(120)).batch_size(4).num_epochs(12).device("cpu").deterministic()
            .ema(0.9).checkpoint_steps(3).run_dir(run).run()
        )
    history = [[m.epoch, m.avg_loss, dict(m.scalars)] for m in handle.poll_metrics()]
    (run.path / "history.json").write_text(__import__("json").dumps(history))

for text in sys.stdin:
    root = __import__("pathlib").Path(text.rstrip("\\n"))
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        train(root)
        os._exit(0)
    os.write(1, f"{child}\\n".encode())
    _, status = os.waitpid(child, 0)
    os.write(1, f"{os.waitstatus_to_exitcode(status)}\\n".encode())
"""


class Nursery:
    """Where trainings begin."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def train(self, root: Path, kill_after: tuple[int, float] | None = None) -> int:
        """Train; kill it so many steps further and then so many seconds later. Its exit code."""
        done = progress(root)
        print(root, file=self._process.stdin, flush=True)
        child = int(self._process.stdout.readline())
        if kill_after is not None:
            steps, seconds = kill_after
            while progress(root) < done + steps and alive(child):
                time.sleep(0.004)
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
        return int(self._process.stdout.readline())


STEPS_PER_EPOCH, EPOCHS = 30, 12


def progress(root: Path) -> int:
    """Steps of the newest checkpoint; 0 before the first."""
    reached = [0]
    for path in root.glob("*/last.fdl"):
        facts = checkpoint_metadata(path)
        reached.append(int(facts["epoch"]) * STEPS_PER_EPOCH + int(facts["step"]))
    return max(reached)


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat").read_text()
    return status.rpartition(")")[2].split()[0] != "Z"


@contextmanager
def nursery():
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    repository = Path(__file__).parents[3]
    command = [sys.executable, "-c", NURSERY]
    with subprocess.Popen(command, text=True, env=environment, cwd=repository, **pipes) as process:
        yield Nursery(process)
        process.stdin.close()


def outcome(run: Path):
    model = network()
    named = dict(model.named_parameters()), dict(model.named_buffers())
    load_checkpoint_file(run / "model.fdl", named[0].items(), named[1].items())
    return model.state_dict(), json.loads((run / "history.json").read_text())


def check_kills(tmp_path, kills, seed):
    rng = random.Random(seed)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    # Counted in steps, so that the training cannot be over before it was killed often enough,
    # however fast or busy the machine is; the seconds put a kill anywhere in a step or a write.
    most = STEPS_PER_EPOCH * EPOCHS * 6 // 10 // kills
    with nursery() as trainings:
        assert trainings.train(whole) == 0
        for _ in range(kills):
            moment = rng.randint(1, most), rng.uniform(0, 0.03)
            assert trainings.train(broken, kill_after=moment) == -signal.SIGKILL
        assert trainings.train(broken) == 0

    (first,) = whole.iterdir()
    runs = sorted(broken.iterdir(), key=lambda path: (path / "run.json").stat().st_mtime_ns)
    assert len(runs) == kills + 1
    origins = [json.loads((run / "run.json").read_text())["resumed_from"] for run in runs]
    assert origins[0] is None
    assert all(origin is not None for origin in origins[1:])
    weights, history = outcome(first)
    resumed_weights, resumed_history = outcome(runs[-1])
    assert all(torch.equal(weights[name], resumed_weights[name]) for name in weights)
    assert len(history) == EPOCHS
    assert resumed_history == history


def test_a_training_killed_twice_ends_with_the_weights_of_one_that_was_not(tmp_path):
    check_kills(tmp_path, 2, seed=1)


@pytest.mark.slow
def test_a_training_killed_twenty_times_ends_with_the_weights_of_one_that_was_not(tmp_path):
    check_kills(tmp_path, 20, seed=2)


@pytest.mark.slow
def test_the_checkpoint_of_a_killed_training_belongs_to_a_run_that_never_ended(tmp_path):
    with nursery() as trainings:
        assert trainings.train(tmp_path, kill_after=(1, 0.0)) == -signal.SIGKILL
    (run,) = tmp_path.iterdir()
    assert json.loads((run / "run.json").read_text())["state"] == "running"
    assert RunDirectory.create(tmp_path, resume="last").resume_source() == run / "last.fdl"
