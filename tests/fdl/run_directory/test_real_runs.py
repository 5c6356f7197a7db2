"""Runs that a real training left behind, from its first epoch to its successor's last."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from flodl.checkpoint import checkpoint_metadata
from tests import fork_server
from tests.waiting import wait_for

PROGRAM = """
import sys, time
import torch
from fdl import FdlArgs, option
from flodl import RunDirectory, Trainer, entry
from torch import nn
from torch.utils.data import TensorDataset


class Args(FdlArgs):
    epochs: int = option(default=2)
    lr: float = option(default=0.1)
    output: str = option(default="runs")
    resume: str | None = option()


def pause(metrics):
    # Slow epochs leave the test time to look in.
    time.sleep(0.2 if args.epochs > 10 else 0)


def main(args):
    trainer = (
        Trainer.builder(
            lambda device: nn.Linear(4, 1).to(device),
            lambda parameters: torch.optim.SGD(parameters, lr=args.lr),
            lambda model, batch: (model(batch[0]) ** 2).mean(),
        )
        .dataset(TensorDataset(torch.randn(16, 4)))
        .batch_size(4)
        .num_epochs(args.epochs)
        .engine("eager")
        .metrics_fn(pause)
    )
    with RunDirectory.create(args.output, config=args.resolved(), resume=args.resume) as run:
        trainer.run_dir(run).run()


args = Args.parse_or_schema()
sys.exit(entry(main, args))
"""

FILES = {
    "fdl.yml": "commands: {train: }",
    "train/fdl.yml": """
        entry: python main.py
        output: {dir: out/train}
        commands:
          fast: {training: {lr: 0.2}, output: {dir: out/fast}}
        """,
    "train/main.py": PROGRAM,
}


@pytest.fixture
def fdl(torch_fdl):
    """The program of these tests imports torch."""
    return torch_fdl


def listed(fdl, *words):
    session = fdl("runs", "list", "--json", *words)
    assert (session.exit, session.err) == (0, "")
    return json.loads(session.out)["runs"]


def running(fdl, folder):
    """The run that goes on, once it can be resumed: its first epoch is listed sooner."""
    found = listed(fdl, "--state", "running")
    return [one for one in found if one["epochs"] and (folder / one["path"] / "last.fdl").exists()]


@pytest.fixture
def trainings():
    """Starts trainings that are ended with the test."""

    def start(folder, *args):
        words = ("main.py", *args, "--output", str(folder / "out/train"))
        process = fork_server.start(*words, cwd=folder / "train", torch=True, abrupt=True)
        started.enter_context(process)
        started.callback(process.kill)
        return process

    with ExitStack() as started:
        yield start


def test_what_trainings_leave_is_listed_shown_and_compared(project, fdl):
    project(FILES)
    for words in (["train"], ["train", "fast"]):
        done = fdl(*words)
        assert done.exit == 0, done.err
        time.sleep(1)  # runs are sorted by the second in which they began
    newest, oldest = listed(fdl)
    assert [newest["state"], oldest["state"]] == ["complete", "complete"]
    assert [newest["epochs"], oldest["epochs"]] == [2, 2]
    assert newest["metrics"]["loss"] > 0
    shown = json.loads(fdl("runs", "show", "--json").out)
    assert shown["config"]["lr"] == {"value": 0.2, "origin": "train/fdl.yml:4:25"}
    assert {"config.json", "last.fdl", "model.fdl", "report.html", "run.json"} <= set(
        shown["files"]
    )
    assert shown["environment"]["allocator"].keys() == {"library", "settings"}
    compared = json.loads(fdl("runs", "compare", newest["path"], oldest["path"], "--json").out)
    assert compared["config"].keys() == {"lr", "output"}
    assert sum(len(one["best"]) for one in compared["metrics"].values()) >= 1
    assert fdl("runs", "open", "--print").out == f"{newest['path']}/report.html\n"
    assert " epochs in " in fdl("runs", "tail", "-l", "2").out


@pytest.mark.slow
def test_a_killed_run_is_dead_and_can_be_resumed_and_cleared_away(project, fdl, trainings):
    folder = project(FILES)
    process = trainings(folder, "--epochs", "500")
    wait_for(lambda: running(fdl, folder))
    assert fdl("runs", "prune", "--yes", "--keep", "0").err.strip() == "no run to remove"
    process.send_signal(signal.SIGKILL)
    process.wait()
    (dead,) = listed(fdl)
    assert dead["state"] == "dead"

    saved = int(checkpoint_metadata(folder / dead["path"] / "last.fdl")["epoch"])
    assert saved >= 1
    done = fdl("train", "--resume", "last", "--epochs", str(saved + 2))
    assert done.exit == 0, done.err
    successor, dead = listed(fdl)
    assert (successor["state"], dead["state"]) == ("complete", "dead")
    assert successor["resumed_from"] == f"{dead['path']}/last.fdl"
    assert f"(resumed {dead['name']})" in fdl("runs", "list").out

    assert fdl("runs", "prune", "--yes", "--state", "dead").exit == 0
    assert [one["path"] for one in listed(fdl)] == [successor["path"]]


def test_following_a_training_ends_when_it_is_interrupted(project, fdl, trainings):
    folder = project(FILES)
    process = trainings(folder, "--epochs", "500")
    wait_for(lambda: running(fdl, folder))
    with subprocess.Popen(
        [sys.executable, "-m", "fdl", "runs", "tail", "--follow", "--lines", "0"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watcher:
        assert watcher.stdout.readline().startswith("epoch ")
        process.send_signal(signal.SIGINT)
        out, err = watcher.communicate(timeout=90)
    assert watcher.returncode == 1
    assert out.splitlines()[-1].startswith("interrupted after ")
    assert err.strip().endswith(": interrupted")
