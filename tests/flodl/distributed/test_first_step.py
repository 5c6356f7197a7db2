"""Ranks are started again after a failure only if the training had begun."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests import fork_server

PROGRAM = """
import multiprocessing, sys
from pathlib import Path
from flodl import RunDirectory, Trainer
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


@pytest.mark.parametrize(
    ("where", "starts", "recorded"),
    [
        ("model", 2, "not"),
        ("step", 4, "recorded"),
        pytest.param("model", 2, "recorded", marks=pytest.mark.slow),
        pytest.param("step", 4, "not", marks=pytest.mark.slow),
    ],
)
def test_a_program_that_starts_its_ranks_starts_them_again_only_after_a_step(
    tmp_path: Path, where: str, starts: int, recorded: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    words = ("program.py", where, recorded, fork_server.torch_program(os.environ))
    done = fork_server.python(*words, cwd=tmp_path, env=env, timeout=120, torch=True)
    said = done.stderr
    assert done.returncode == 1, said
    assert (tmp_path / "starts").read_text() == "x" * starts, said
    assert said.count("starting all ranks again (1 of 1)") == starts // 2 - 1
    assert said.count("\nValueError: it is broken\n") == 1
    # The third step of rank 0 is batch 4 and that of rank 1 batch 5. Either may be told first.
    place = r"(\nin epoch 0, batch [45] \(both counted from 0\))?"
    assert re.search(r"\nValueError: it is broken" + place + r"\Z", said.rstrip())
