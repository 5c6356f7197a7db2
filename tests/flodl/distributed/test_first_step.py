"""Ranks are started again after a failure only if the training had begun."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fdl.plan import rank_launcher
from fdl.plan.torchrun import LAUNCHER
from flodl import Trainer
from flodl.ranks.launch.launcher import BEGUN, WATCHED
from tests import fork_server
from tests.flodl.distributed.trainings import Numbers, linear, sgd

PROGRAM = (
    f"ROOT = {str(Path(__file__).parents[3])!r}\n"
    + """
import multiprocessing, sys
from flodl import RunDirectory, Trainer
sys.path.append(ROOT)
from tests.flodl.distributed.trainings import Numbers, linear, sgd

def fail():
    raise ValueError("it is broken")

def model(device):
    with open("starts", "a") as file:
        file.write("x")
    return fail() if sys.argv[1] == "model" else linear(device)

steps = 0

def loss(net, batch):
    global steps
    steps += 1
    if sys.argv[1] == "step" and steps == 3:
        fail()
    return (net(batch[0]) - batch[1]).square().mean()

if __name__ == "__main__":
    multiprocessing.set_executable(sys.argv[3])  # ranks do not import torch each time
    trainer = Trainer.builder(model, sgd, loss).dataset(Numbers(400)).batch_size(8)
    trainer = trainer.num_epochs(1).ranks(2).policy("sync").max_restarts(1)
    if sys.argv[2] == "recorded":
        trainer = trainer.run_dir(RunDirectory.create("runs"))
    trainer.run()
"""
)


@pytest.mark.parametrize(
    ("where", "starts", "recorded"),
    [
        pytest.param("model", 2, "not", marks=pytest.mark.slow),
        ("step", 4, "recorded"),
        pytest.param("model", 2, "recorded", marks=pytest.mark.slow),
        pytest.param("step", 4, "not", marks=pytest.mark.slow),
    ],
)
def test_a_program_that_starts_its_ranks_starts_them_again_only_after_a_step(
    tmp_path: Path, where: str, starts: int, recorded: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ("program.py", where, recorded, fork_server.torch_program(os.environ))
    done = fork_server.python(*words, cwd=tmp_path, timeout=120, torch=True)
    said = done.stderr
    assert done.returncode == 1, said
    assert (tmp_path / "starts").read_text() == "x" * starts, said
    assert said.count("starting all ranks again (1 of 1)") == starts // 2 - 1
    assert said.count("\nValueError: it is broken\n") == 1
    # The third step of rank 0 is batch 4 and that of rank 1 batch 5. Either may be told first.
    place = r"(\nin epoch 0, batch [45] \(both counted from 0\))?"
    assert re.search(r"\nValueError: it is broken" + place + r"\Z", said.rstrip())


@pytest.mark.slow
@pytest.mark.parametrize(("where", "starts"), [("model", 2), ("step", 4)])
def test_ranks_that_fdl_starts_begin_again_only_after_a_step(
    tmp_path: Path, where: str, starts: int
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    python = fork_server.torch_program(os.environ)
    env = {**os.environ, "PYTHON_EXEC": python}
    options = ("--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2", "--max-restarts=1")
    words = (LAUNCHER, *options, "--", "program.py", where, "recorded", python)
    done = fork_server.python(*words, cwd=tmp_path, env=env, timeout=120, torch=True)
    said = done.stderr
    assert done.returncode == 1, said
    assert (tmp_path / "starts").read_text() == "x" * starts, said
    assert said.count("warning: rank ") == said.count("ranks again (1 of 1)") == starts // 2 - 1
    if where == "model":
        assert said.count("ValueError: it is broken\n") == 1
        assert said.endswith("ValueError: it is broken\n")


@pytest.mark.parametrize("loop", ["builder", "setup"])
def test_every_loop_says_that_it_has_begun_after_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    seen: list[set[str]] = []

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append({path.name for path in tmp_path.iterdir()})
        return (net(batch[0]) - batch[1]).square().mean()

    if loop == "builder":
        trainer = Trainer.builder(linear, sgd, loss).dataset(Numbers(16)).batch_size(8)
        trainer.num_epochs(1).run().join()
    else:
        setup = Trainer.setup(linear(torch.device("cpu")), None, sgd, device="cpu")
        for batch in DataLoader(Numbers(16), 8):
            loss(setup.model, batch).backward()
            setup.step()
    assert seen == [{WATCHED}, {WATCHED, BEGUN}]


def test_fdl_looks_for_the_files_that_flodl_makes() -> None:
    assert (rank_launcher.BEGUN, rank_launcher.WATCHED) == (BEGUN, WATCHED)
