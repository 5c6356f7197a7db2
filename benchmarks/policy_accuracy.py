"""Accuracy of every policy with default settings, beside torch's DDP at equal samples.

    python -m benchmarks.policy_accuracy [--output docs/benchmarks/policy_accuracy.md]

Two ranks over Gloo with one thread each. All ways see the same batches in the same order, from the
same initial weights, with the learning rate that was written down; nothing else is set. A way
passes where its mean over the seeds is not below that of DDP by more than one standard deviation
of DDP's seeds.

Two tasks: the digits that ship with flodl, and ``rings``, which was made for this comparison and on
which no default was ever chosen. Takes about 9 minutes on two cores.

The held-out part of the digits has 359 samples. One of them is as much as the deviation of three
seeds, so that chance decides; sixteen seeds tell chance from a difference.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import (
    command_line,
    judged,
    page,
    publish,
    read_options,
    table,
)
from benchmarks.unequal_ranks import in_ranks
from flodl import Batch, DataLoader, TensorDataSet, Trainer, digits
from flodl.train.runner import this_group

DDP = "torch DDP"
POLICIES = ("sync", "cadence", "async")
WAYS = (DDP, *POLICIES)
RANKS = 2


# --- What is trained ---------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Task:
    """Samples to learn from and to be judged by, and a network for them.

    The number of samples is a multiple of ``RANKS · batch``: then DDP sees every sample, too.
    """

    train: Callable[[], tuple[Tensor, Tensor]]
    test: Callable[[], tuple[Tensor, Tensor]]
    network: Callable[[], nn.Module]
    batch: int
    epochs: int
    seeds: int
    """How many means tell a difference from chance: the more, the fewer samples are held out."""


def _digits(split: Any, count: int) -> tuple[Tensor, Tensor]:
    batch = next(iter(DataLoader(digits(split), count, shuffle=False, names=["image", "label"])))
    return batch["image"].flatten(1), batch["label"]


@cache
def _rings(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Points in 6 dimensions; the class is the ring of a rotated plane and its half, with noise.

    A tenth of the labels is wrong, in the held-out part as well: nobody gets beyond 0.91.
    """
    generator = torch.Generator().manual_seed(seed)
    turn, _ = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(77)))
    points = torch.randn(count, 6, generator=generator)
    plane = (points @ turn)[:, :2]
    ring = (plane.norm(dim=1) * 2.0).long().clamp(max=3)
    labels = 2 * ring + (plane[:, 0] * plane[:, 1] > 0).long()
    wrong = torch.rand(count, generator=generator) < 0.1
    drawn = torch.randint(0, 8, (count,), generator=generator)
    return points, torch.where(wrong, drawn, labels)


def _perceptron(inputs: int, width: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


def _digits_network() -> nn.Module:
    return _perceptron(64, 32, 10)


def _rings_network() -> nn.Module:
    return _perceptron(6, 64, 8)


def _digits_train() -> tuple[Tensor, Tensor]:
    return _digits("train", 1408)


def _digits_test() -> tuple[Tensor, Tensor]:
    return _digits("test", 359)


def _rings_train() -> tuple[Tensor, Tensor]:
    return _rings(1, 8192)


def _rings_test() -> tuple[Tensor, Tensor]:
    return _rings(2, 8192)


TASKS = {
    "digits": Task(_digits_train, _digits_test, _digits_network, 16, 10, 16),
    "rings": Task(_rings_train, _rings_test, _rings_network, 32, 8, 3),
}


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=2e-3)


OPTIMIZERS: Mapping[str, Callable[[Any], torch.optim.Optimizer]] = {"SGD": _sgd, "Adam": _adam}


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


# --- What each of the ranks does -----------------------------------------------------------------


def results(
    names: Sequence[str], ways: Sequence[str], seeds: int | None = None
) -> dict[str, list[float]]:
    """Train everything; return the accuracies by ``task/optimizer/way``, one per seed.

    Args:
        names: The tasks.
        ways: DDP and policies.
        seeds: Number of seeds; None: as many as each task needs.
    """
    this_group()  # DDP takes part in a group that is there
    return {
        f"{name}/{optimizer}/{way}": [
            accuracy(name, optimizer, way, seed)
            for seed in range(1, (seeds or TASKS[name].seeds) + 1)
        ]
        for name in names
        for optimizer in OPTIMIZERS
        for way in ways
    }


def accuracy(name: str, optimizer: str, way: str, seed: int) -> float:
    """Train on this rank with the others; return the part of the held-out samples that is right."""
    task, make = TASKS[name], OPTIMIZERS[optimizer]
    model = _by_ddp(task, make, seed) if way == DDP else _by_policy(task, make, way, seed)
    inputs, labels = task.test()
    with torch.no_grad():
        model.eval()
        return float((model(inputs).argmax(1) == labels).double().mean())


def _by_policy(task: Task, optimizer: Callable[..., Any], policy: str, seed: int) -> nn.Module:
    handle = (
        Trainer.builder(lambda _: task.network(), optimizer, _loss)
        .dataset(TensorDataSet(*task.train()))
        .batch_size(task.batch)
        .num_epochs(task.epochs)
        .seed(seed)
        .policy(policy)
        .progress(False)
        .run()
    )
    model = task.network()
    handle.join().load_into(model)
    return model


def _by_ddp(task: Task, optimizer: Callable[..., Any], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = DistributedDataParallel(task.network())
    stepped = optimizer(model.parameters())
    with closing(DataLoader(TensorDataSet(*task.train()), task.batch, seed=seed)) as loader:
        for epoch in range(task.epochs):
            for batch in _own(loader.epoch(epoch)):
                stepped.zero_grad()
                _loss(model, batch).backward()  # type: ignore[no-untyped-call]
                stepped.step()
    inner: nn.Module = model.module
    return inner


def _own(batches: Iterator[Batch]) -> Iterator[Batch]:
    """This rank's batch of each ``RANKS`` consecutive ones, as policy sync takes them."""
    rank = this_group().rank
    for number, batch in enumerate(batches):
        if number % RANKS == rank:
            yield batch


# --- The page ------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Verdict:
    """One way beside DDP."""

    mean: float
    ddp: float
    deviation: float
    """Standard deviation of DDP over the seeds."""

    @property
    def passes(self) -> bool:
        """Whether it is not worse than DDP by more than one standard deviation."""
        return self.ddp - self.mean <= self.deviation


def judge(found: Mapping[str, Sequence[float]], name: str, optimizer: str, way: str) -> Verdict:
    """Compare a way with DDP."""
    ddp = found[f"{name}/{optimizer}/{DDP}"]
    return Verdict(
        statistics.fmean(found[f"{name}/{optimizer}/{way}"]),
        statistics.fmean(ddp),
        statistics.stdev(ddp),
    )


def described(options: argparse.Namespace, found: Mapping[str, Sequence[float]]) -> str:
    """Return the Markdown page."""
    names = options.tasks
    rows: list[list[str]] = []
    missed: list[str] = []
    for name in names:
        for optimizer in OPTIMIZERS:
            for way in WAYS:
                values, verdict = (
                    found[f"{name}/{optimizer}/{way}"],
                    judge(found, name, optimizer, way),
                )
                ours = way != DDP
                if ours and not verdict.passes:
                    missed.append(f"{way} on {name} with {optimizer}")
                rows.append(
                    [
                        name,
                        optimizer,
                        way,
                        f"{verdict.mean:.4f}",
                        f"{min(values):.4f} … {max(values):.4f}",
                        f"{verdict.mean - verdict.ddp:+.4f}" if ours else "",
                        f"{verdict.deviation:.4f}",
                        judged(verdict.passes) if ours else "",
                    ]
                )
    total = len(names) * len(OPTIMIZERS) * len(POLICIES)
    header = ["task", "optimizer", "way", "accuracy", "seeds", f"− {DDP}", "σ of DDP", "within"]
    return page(
        options,
        "Accuracy of the policies with default settings",
        f"{RANKS} ranks, equal samples, the same "
        "batches and initial weights; nothing is set but policy and seed. *Within*: not below "
        f"DDP by more than one standard deviation σ of DDP's seeds. {total - len(missed)} of "
        f"{total} are. Two means that differ by chance alone are further apart than one σ now "
        "and then, the more seldom the more seeds there are.",
        f"The bar is that all are: {'MISSED by ' + ', '.join(missed) if missed else 'PASS'}.",
        table(header, rows),
        table(
            ["task", "samples", "held out", "batch", "epochs", "seeds"],
            [
                [
                    name,
                    str(len(TASKS[name].train()[1])),
                    str(len(TASKS[name].test()[1])),
                    str(TASKS[name].batch),
                    str(TASKS[name].epochs),
                    str(options.seeds or TASKS[name].seeds),
                ]
                for name in names
            ],
        ),
        "SGD with learning rate 0.05 and momentum 0.9, Adam with 0.002; networks with batch "
        "normalisation. `rings` was made for this page: no default was chosen by it.",
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Train, and publish the table."""
    parser = command_line("policy_accuracy", __doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, help="of every task; default: what each task needs")
    options = read_options(parser, argv, seeds=2, tasks=["digits"])
    found = in_ranks(RANKS, results, options.tasks, WAYS, options.seeds)
    publish(described(options, found), options.output)


if __name__ == "__main__":
    main()
