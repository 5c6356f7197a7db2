"""A training for the tests of faults: reads what to do, and writes down what it did."""

import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
from torch import nn

from flodl import Callback, RunDirectory, TensorDataSet, Trainer, entry


class Watch(Callback):
    """Writes down where each rank is, so that the test knows when to strike."""

    def __init__(self, folder, options):
        self.rank = int(os.environ.get("RANK", "0"))
        self.folder, self.options = folder, options

    def on_train_start(self, run):
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        (self.folder / f"pid-{self.rank}-{restart}").write_text(str(os.getpid()))
        start = {"rank": self.rank, "world": int(os.environ.get("WORLD_SIZE", "1"))}
        start |= {"host": socket.gethostname(), "pid": os.getpid(), "epochs": len(run.history)}
        with (self.folder / "starts").open("a") as file:
            file.write(json.dumps(start) + "\n")

    def on_step_end(self, run):
        (self.folder / f"epoch-{self.rank}").write_text(str(run.epoch))

    def on_checkpoint(self, run, _path):
        # Another thread is about to write the file.
        if self.options.get("die_at_checkpoint") == len(run.history) and not self.died():
            os.kill(os.getpid(), 9)

    def died(self):
        mark = self.folder / "died"
        if mark.exists():
            return True
        mark.write_text("")
        return False


def model(_device):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=1e-2)


def loss(net, batch):
    return (net(batch[0]) - batch[1]).square().mean()


def main(options):
    folder = Path(options["folder"])
    inputs = torch.randn(options["n"], 4, generator=torch.Generator().manual_seed(0))

    def step(net, batch):
        # Ranks that may become fewer or more: a list of simulated ones would have to fit.
        time.sleep(options.get("batch_ms", 0) / 1000)
        return loss(net, batch)

    if options.get("raise_on_rank") == int(os.environ.get("RANK", "0")):
        raise LookupError("this rank has lost its way")
    with RunDirectory.create(folder / "runs") as run:
        trained = (
            Trainer.builder(model, optimizer, step)
            .dataset(TensorDataSet(inputs, inputs.sum(1, keepdim=True)))
            .batch_size(16)
            .num_epochs(options["epochs"])
            .engine("eager")
            .deterministic(options.get("deterministic", False))
            .callbacks(Watch(folder, options))
            .ddp(options["ddp"])
            .run_dir(run)
            .run()
        )
    told = {
        "aborts": trained.abort_count,
        "epochs": [metrics.epoch for metrics in trained.poll_metrics()],
        "params": [p.flatten().tolist() for p in trained.join().params],
    }
    (folder / f"result-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(told))


sys.exit(entry(main, json.loads(Path(sys.argv[1]).read_text())))
