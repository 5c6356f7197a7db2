"""Power cuts in small: a process is killed while it saves, again and again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from contextlib import contextmanager

import pytest
import torch

from flodl.checkpoint import checkpoint_metadata, load_checkpoint_file, save_checkpoint_file
from tests import fork_server

# Imports torch once; each line of its input forks a process that saves ever higher numbers and
# tells of every save that is done. When that one is gone, "gone" follows.
NURSERY = """
import os, sys, torch
from flodl.checkpoint import save_checkpoint_file

torch.set_num_threads(1)
tensors = {name: torch.zeros(500_000) for name in ("first", "second")}

def save_forever(path, number):
    while True:
        number += 1
        for tensor in tensors.values():
            tensor.fill_(number)
        save_checkpoint_file(path, tensors.items(), [], epoch=number)
        os.write(1, f"saved {number}\\n".encode())

for line in sys.stdin:
    number, path = line.rstrip("\\n").split(" ", 1)
    child = os.fork()
    if child == 0:
        save_forever(path, int(number))
    os.write(1, f"child {child}\\n".encode())
    os.waitpid(child, 0)
    os.write(1, b"gone\\n")
"""


@contextmanager
def nursery():
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [fork_server.torch_program(environment), "-c", NURSERY]
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        yield process
        process.stdin.close()


def kill_one_save(process, path, number, pause):
    """Kill a process while it saves; returns the number of the last save it called done."""
    process.stdin.write(f"{number} {path}\n")
    process.stdin.flush()
    lines = iter(process.stdout.readline, "gone\n")
    child = next(int(line.split()[1]) for line in lines if line.startswith("child"))
    while not list(path.parent.glob(".model.fdl.*.tmp")):
        time.sleep(0.0005)
    time.sleep(pause)
    os.kill(child, signal.SIGKILL)
    for line in lines:
        number = max(number, int(line.split()[1]))
    return number


def check_kills(tmp_path, kills, seed):
    path, number = tmp_path / "model.fdl", 0
    rng, interrupted = random.Random(seed), 0
    model = {name: torch.zeros(500_000) for name in ("first", "second")}
    # A disk may be so slow that no process gets as far as its first file.
    save_checkpoint_file(path, model.items(), [], epoch=number)
    with nursery() as process:
        for _ in range(kills):
            done = kill_one_save(process, path, number, rng.choice([0.0, rng.uniform(0, 0.03)]))
            leftovers = list(tmp_path.glob(".model.fdl.*.tmp"))
            interrupted += bool(leftovers)
            for leftover in leftovers:
                leftover.unlink()
            assert load_checkpoint_file(path, model.items(), []).missing == []
            number = int(checkpoint_metadata(path)["epoch"])
            assert number >= done  # a save that was called done is never taken back
            assert all(bool((value == number).all()) for value in model.values())
    assert interrupted > 0


@pytest.mark.case("runtime", 38)
def test_a_process_killed_while_saving_never_costs_the_previous_file(tmp_path):
    check_kills(tmp_path, 10, seed=1)


@pytest.mark.slow
def test_two_hundred_kills_never_cost_the_previous_file(tmp_path):
    check_kills(tmp_path, 200, seed=2)
