"""One training for :mod:`benchmarks.shared_machine`, in a process of its own.

It imports what it needs and prints ``ready``. After a line on stdin it trains, and prints the
seconds of the training and its last loss as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

OURS, DEFAULT = "auto", "eager"
"""The engines of flodl, as ways to train; the second one is the default."""

MODELS = ("digits", "transformer", "resnet20")


@dataclass(frozen=True, slots=True)
class Job:
    """A training: ``epochs`` passes over samples in random order, with AdamW.

    Attributes:
        model: Makes the module.
        inputs: ``[N, ...]``.
        targets: ``[N, ...]``.
        loss: ``(output, target) -> scalar``.
        batch: Samples per step; what is left at the end of an epoch is a smaller step.
        epochs: Passes.
    """

    model: Callable[[], nn.Module]
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]
    batch: int
    epochs: int


def digits_job(scale: float) -> Job:
    """The training of the scaffold, with its defaults."""
    from torch import nn
    from torch.nn.functional import cross_entropy

    from flodl import digits

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = (nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
            self.inner = nn.Sequential(*layers)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = x + self.inner(x)
            return y

    def model() -> nn.Module:
        begin = (nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), Residual())
        return nn.Sequential(*begin, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 10))

    images, labels = digits("train").tensors
    return Job(model, images, labels, cross_entropy, 32, max(1, round(10 * scale)))


def transformer_job(scale: float) -> Job:
    """A transformer of four layers that predicts tokens, with 32 positions and width 64."""
    import torch
    from torch.nn.functional import cross_entropy

    from benchmarks.ten_models_networks import Transformer

    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(256, (2, 480, 32), generator=draw)

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(logits.flatten(0, 1), target.flatten())

    return Job(
        partial(Transformer, 256, 32, 64, 256),
        tokens[0],
        tokens[1],
        loss,
        16,
        max(1, round(3 * scale)),
    )


def resnet_job(scale: float) -> Job:
    """A ResNet-20 for images of CIFAR-10's size, with batches of eight."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    from flodl.ddp_bench.models.resnet import Residual

    def model() -> nn.Module:
        stages = ((16, 16, 1), (16, 32, 2), (32, 64, 2))
        blocks = [
            Residual(*(stage if number == 0 else (stage[1], stage[1], 1)))
            for stage in stages
            for number in range(3)
        ]
        begin = (nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        end = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
        return nn.Sequential(*begin, *blocks, *end)

    draw = torch.Generator().manual_seed(1)
    images = torch.randn(8 * max(2, round(100 * scale)), 3, 32, 32, generator=draw)
    labels = torch.randint(10, (len(images),), generator=draw)
    return Job(model, images, labels, cross_entropy, 8, 1)


JOBS: dict[str, Callable[[float], Job]] = {
    "digits": digits_job,
    "transformer": transformer_job,
    "resnet20": resnet_job,
}


def by_hand(job: Job) -> float:
    """Train with a loop of plain torch; return the last loss."""
    import torch

    model = job.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    value = 0.0
    for _ in range(job.epochs):
        order = torch.randperm(len(job.inputs))
        for at in range(0, len(order), job.batch):
            rows = order[at : at + job.batch]
            loss = job.loss(model(job.inputs[rows]), job.targets[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        value = loss.item()
    return value


def with_flodl(job: Job, engine: str) -> float:
    """Train with an engine of flodl; return the mean loss of the last epoch."""
    import torch

    from flodl import Batch, TensorDataSet, Trainer

    def train_step(model: nn.Module, batch: Batch) -> Tensor:
        return job.loss(model(batch[0]), batch[1])

    def model(device: object) -> nn.Module:  # noqa: ARG001 - the CPU
        return job.model()

    trainer = (
        Trainer.builder(model, partial(torch.optim.AdamW, lr=1e-3), train_step)
        .dataset(TensorDataSet(job.inputs, job.targets))
        .batch_size(job.batch)
        .num_epochs(job.epochs)
        .engine(engine)
    )
    return trainer.run().poll_metrics()[-1].avg_loss


def main(way: str, model: str, scale: str) -> None:
    """Get ready, wait, train and tell."""
    ours = way in (OURS, DEFAULT)
    if ours:
        import flodl  # noqa: F401 - before torch, as `fdl` and a program of flodl do
    import torch

    torch.manual_seed(0)
    job = JOBS[model](float(scale))
    # The first optimizer imports torch's compiler, and that is a part of the imports.
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FLODL_CACHE_DIR"] = cache  # each training decides for itself
        if ours:
            from flodl import Trainer  # noqa: F401
        print("ready", flush=True)
        sys.stdin.readline()
        started = time.perf_counter()
        told["loss"] = with_flodl(job, way) if ours else by_hand(job)
        told["seconds"] = time.perf_counter() - started
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
