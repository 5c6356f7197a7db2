"""A training whose ranks come and go; it ends when the test asks for that."""

import multiprocessing
import os
import sys
import threading
import time
from hashlib import blake2b
from pathlib import Path

import torch
from torch import nn

from flodl import Callback, RunDirectory, TensorDataSet, Trainer, entry
from flodl.ranks.elastic import start
from flodl.ranks.elastic.group import ElasticGroup
from flodl.ranks.launch import interrupt

FOLDER = Path(os.environ["FOLDER"])

# Signals that follow each other count as one, however long a busy machine takes between them.
interrupt._SAME_WITHIN_S = 60.0


def note_repeated_exchanges():
    """Let a rank note that an exchange of small values has failed and is repeated."""
    go_on = ElasticGroup._go_on

    def noted(group):
        (FOLDER / "repeated").touch()
        go_on(group)

    ElasticGroup._go_on = noted


note_repeated_exchanges()


class Watch(Callback):
    """Writes down the weights of this rank after each epoch."""

    def on_epoch_end(self, run, metrics):
        weights = b"".join(value.numpy().tobytes() for value in run.model.state_dict().values())
        digest = blake2b(weights, digest_size=8).hexdigest()
        file = FOLDER / f"rank-{os.environ.get('RANK', 'joined')}-{os.getpid()}"
        with file.open("a") as rows:
            rows.write(f"{metrics.epoch} {digest} {len(metrics.counts)}\n")
        if (FOLDER / "enough").exists():
            run.stop("enough")


def model(_device):
    # Over a megabyte: fixed ranks would exchange it through memory that all of them map.
    return nn.Sequential(nn.Linear(4, 60_000), nn.Tanh(), nn.Linear(60_000, 1))


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=1e-3)


def loss(net, batch):
    pace = os.environ.get("PACE_MS", "5").split(",")
    time.sleep(float(pace[int(os.environ.get("RANK", "0")) % len(pace)]) / 1000)
    return (net(batch[0]) - batch[1]).square().mean()


def let_the_lighthouse_go_dark():
    """Stop the first lighthouse of this process once the test asks for that."""
    servers, make = [], start.lighthouse

    def made(*arguments):
        server, place = make(*arguments)
        servers.append(server)
        return server, place

    def wait():
        while not (FOLDER / "dark").exists():
            time.sleep(0.05)
        servers[0].shutdown()
        (FOLDER / "is-dark").touch()

    start.lighthouse = made
    threading.Thread(target=wait, daemon=True).start()


def main(_):
    let_the_lighthouse_go_dark()
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(240, 4, generator=generator)
    (
        Trainer.builder(model, optimizer, loss)
        .dataset(TensorDataSet(inputs, inputs.sum(1, keepdim=True)))
        .batch_size(int(os.environ.get("BATCH_SIZE", "4")))
        .num_epochs(10_000)
        .engine("eager")
        .callbacks(Watch())
        .ranks(int(os.environ.get("RANKS", "3")))
        .elastic()
        .exchange(os.environ.get("EXCHANGE", "float32"))
        .checkpoint_steps(int(os.environ.get("CHECKPOINT_STEPS", "0")) or None)
        .run_dir(RunDirectory.create(FOLDER / "runs"))
        .run()
    )


if __name__ == "__main__":
    if "STARTS_RANKS" in os.environ:
        multiprocessing.set_executable(os.environ["STARTS_RANKS"])
    sys.exit(entry(main, None))
