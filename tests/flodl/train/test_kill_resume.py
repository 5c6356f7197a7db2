"""A training that is killed again and again ends where one ends that never was."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from flodl.checkpoint import checkpoint_metadata, load_checkpoint_file
from flodl.train import RunDirectory
from tests import fork_server

from .programs import network

# Trains in a new run directory under the given root, continuing the newest one where there is a
# checkpoint.
PROGRAM = """
import json, os, sys, time, torch
from pathlib import Path
from flodl import Trainer
from flodl.train import RunDirectory, record_scalar
from tests.flodl.train.programs import line, network, squared_error

steps_left = int(sys.argv[2])

def train_fn(model, batch):
    global steps_left
    steps_left -= 1
    while steps_left < 0:
        time.sleep(0.01)  # however late a busy machine kills it, it is not over before
    loss = squared_error(model, batch)
    record_scalar("twice", 2 * loss)
    return loss

os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
root = Path(sys.argv[1])
resume = "last" if list(root.glob("*/last.fdl")) else None
with RunDirectory.create(root, resume=resume) as run:
    handle = (
        Trainer.builder(network, lambda p: torch.optim.Adam(p, lr=0.01), train_fn)
        .dataset(line(120)).batch_size(4).num_epochs(12).device("cpu").deterministic()
        .ema(0.9).checkpoint_steps(3).run_dir(run).run()
    )
history = [[m.epoch, m.avg_loss, dict(m.scalars)] for m in handle.poll_metrics()]
(run.path / "history.json").write_text(json.dumps(history))
os._exit(0)
"""
ROOT = Path(__file__).parents[3]


def train(root: Path, kill_after: tuple[int, float] | None = None) -> int:
    """Train; kill it so many steps further and then so many seconds later. Its exit code."""
    done = progress(root)
    most = 10**6 if kill_after is None else kill_after[0] + 10
    with fork_server.start("-c", PROGRAM, str(root), str(most), cwd=ROOT, torch=True) as child:
        if kill_after is not None:
            steps, seconds = kill_after
            while progress(root) < done + steps and child.poll() is None:
                time.sleep(0.004)
            time.sleep(seconds)
            child.kill()
        return child.wait()


STEPS_PER_EPOCH, EPOCHS = 30, 12


def progress(root: Path) -> int:
    """Steps of the newest checkpoint; 0 before the first."""
    reached = [0]
    for path in root.glob("*/last.fdl"):
        facts = checkpoint_metadata(path)
        reached.append(int(facts["epoch"]) * STEPS_PER_EPOCH + int(facts["step"]))
    return max(reached)


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
    assert train(whole) == 0
    for _ in range(kills):
        moment = rng.randint(1, most), rng.uniform(0, 0.03)
        assert train(broken, kill_after=moment) == -signal.SIGKILL
    assert train(broken) == 0

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
    assert train(tmp_path, kill_after=(1, 0.0)) == -signal.SIGKILL
    (run,) = tmp_path.iterdir()
    assert json.loads((run / "run.json").read_text())["state"] == "running"
    assert RunDirectory.create(tmp_path, resume="last").resume_source() == run / "last.fdl"
