"""A training that lasts: each step takes so many seconds, and a process reads the data."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from flodl import RunDirectory, Trainer

FOLDER, SECONDS = Path(sys.argv[1]), float(sys.argv[2])
steps = 0
RANKS = int(sys.argv[3]) if len(sys.argv) > 3 else None


class Samples:
    """Read one by one, in a process of the loader."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return torch.full((3,), float(index % 7)), torch.ones(1)


def model(_device):
    return nn.Linear(3, 1)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=1e-3)


def step(net, batch):
    global steps
    steps += 1
    # Short steps are behind the first window then, in which ranks need the store of torchrun.
    if SECONDS >= 1 or steps == 60:
        (FOLDER / f"pid-{os.getpid()}").touch()
    time.sleep(SECONDS)
    return (net(batch[0]) - batch[1]).square().mean()


if __name__ == "__main__":
    with RunDirectory.create(FOLDER / "runs") as run:
        builder = (
            Trainer.builder(model, optimizer, step)
            .dataset(Samples())
            .batch_size(4)
            .loader_options(workers=1)
            .num_epochs(1000)
            .engine("eager")
            .progress(False)
            .run_dir(run)
        )
        (builder.ranks(RANKS) if RANKS else builder).run()
