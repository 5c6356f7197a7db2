"""Small trainings that every rank of a test runs, and what they leave to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from flodl import Batch, EpochMetrics, Trainer
from flodl.ranks.group import Group
from flodl.train.runner import carry_out
from flodl.train.settings import TrainingPlan

PATIENT = {"snapshot_timeout": 60.0}
"""For trainings in which no average is to be skipped: a rank may be late on a busy machine."""


@dataclass
class Outcome:
    """What one rank saw of a training."""

    batches: list[tuple[int, list[int]]] = field(default_factory=list)
    """Local step and sample numbers of each batch, in order."""
    rates: list[float] = field(default_factory=list)
    """Learning rate of each batch."""
    epochs_begun: list[int] = field(default_factory=list)
    metrics: list[EpochMetrics] = field(default_factory=list)
    params: list[Tensor] = field(default_factory=list)
    buffers: list[Tensor] = field(default_factory=list)
    moments: list[Tensor] = field(default_factory=list)
    averages: int = 0
    aborts: int = 0
    stopped: str | None = None

    @property
    def samples(self) -> list[int]:
        """All sample numbers, in order."""
        return [number for _, rows in self.batches for number in rows]


class Numbers:
    """Inputs of three features, a target that is their sum and some noise, and the number."""

    def __init__(self, n: int, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(n, 3, generator=generator, dtype=torch.float64).to(dtype)
        noise = torch.randn(n, 1, generator=generator, dtype=torch.float64).to(dtype)
        self.targets = self.inputs.sum(1, keepdim=True) + 0.1 * noise

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.inputs[index], self.targets[index], torch.tensor(index)


def linear(_: torch.device) -> nn.Module:
    return nn.Linear(3, 1)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def train(
    group: Group,
    *,
    n: int = 200,
    batch_size: int = 8,
    epochs: int = 2,
    policy: str | None = "cadence",
    ms: tuple[float, ...] | None = None,
    model: Any = linear,
    optimizer: Any = sgd,
    dtype: torch.dtype = torch.float32,
    loss: Any = None,
    settings: Mapping[str, Any] | None = None,
    builder: Mapping[str, Any] | None = None,
    loader: Mapping[str, Any] | None = None,
) -> Outcome:
    """Train on this rank with all others.

    Args:
        group: The ranks.
        n: Samples.
        batch_size: Samples per batch.
        epochs: Number of epochs.
        policy: When the ranks agree; None: the default.
        ms: Declared milliseconds per batch of each rank.
        model: Factory.
        optimizer: Factory.
        dtype: Of model and data.
        loss: ``(model, batch, rank, local step) -> loss``; None: mean squared error.
        settings: Further settings of ranks, as in a ``ddp:`` section.
        builder: Further calls of the builder: name -> argument.
        loader: Settings of the data loader.
    """
    seen = Outcome()

    def train_fn(net: nn.Module, batch: Batch) -> Tensor:
        step = len(seen.batches)
        seen.batches.append((step, batch[2].tolist()))
        seen.rates.append(float(made[0].param_groups[0]["lr"]))
        if loss is not None:
            return loss(net, batch, group.rank, step)
        return (net(batch[0]) - batch[1]).square().mean()

    made: list[torch.optim.Optimizer] = []

    def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
        made.append(optimizer(parameters))
        return made[0]

    described = (
        Trainer.builder(lambda device: model(device).to(dtype), make_optimizer, train_fn)
        .dataset(Numbers(n, dtype))
        .batch_size(batch_size)
        .num_epochs(epochs)
        .engine("eager")
        .progress(False)
        .epoch_fn(lambda epoch, _: seen.epochs_begun.append(epoch))
        .ddp({"policy": policy, "simulate_ms": ms, **PATIENT, **(settings or {})})
    )
    if loader:
        described.loader_options(**loader)
    for name, argument in (builder or {}).items():
        getattr(described, name)(argument)
    handle = carry_out(plan_of(described), group)
    state = handle.join()
    seen.metrics = handle.poll_metrics()
    seen.params, seen.buffers = state.params, state.buffers
    seen.averages, seen.aborts, seen.stopped = handle.version, handle.abort_count, handle.stopped
    for kept in made[0].state.values():
        seen.moments += [v.clone() for v in kept.values() if isinstance(v, Tensor)]
    return seen


def plan_of(described: Any) -> TrainingPlan:
    """The plan that a builder would carry out."""
    plan: TrainingPlan = described._plan()
    return plan


def with_settings(plan: TrainingPlan, **changes: Any) -> TrainingPlan:
    """The plan with other settings of ranks."""
    return replace(plan, distributed=plan.distributed.having(**changes))
