"""Baselines: torch's own data parallelism; only the order of the batches is flodl's.

``torch-ddp`` averages the gradients in every step (S. Li et al., "PyTorch Distributed", 2020).
``torch-postlocalsgd`` does so in its first steps, then averages the parameters at a fixed interval
(T. Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", 2020). Both give every rank the same
number of batches and the same weight.
"""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from inspect import signature
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from fdl.base.units import counted
from flodl.data import DataLoader
from flodl.ddp_bench.stage import Stage
from flodl.errors import DataError
from flodl.ranks.clocks import BatchTimer
from flodl.train.callbacks import model_metrics
from flodl.train.step.learning_rate import ScheduledRate, SteeredRate

if TYPE_CHECKING:
    from torch import Tensor, nn

INTERVAL = 10
"""Steps between two averages of the parameters: the same as the first anchor of our windows."""
_SENDS_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)
"""Name of the option in the installed version of torch."""


class Recipe(ABC):
    """A setup of torch's data parallelism for one model.

    Attributes:
        inner: The model.
        outer: The module that a training step calls.
        optimizer: The optimizer.
        interval: Steps between two exchanges.
    """

    inner: nn.Module
    outer: nn.Module
    optimizer: Any
    interval: int

    @abstractmethod
    def settle(self) -> None:
        """Make the models of all ranks equal before an evaluation."""


@final
class GradientAverage(Recipe):
    """``DistributedDataParallel`` as its documentation shows it."""

    interval = 1

    def __init__(self, stage: Stage, lr: float) -> None:
        self.inner = stage.build()
        self.outer = _parallel(self.inner, stage)
        self.optimizer = stage.task.optimizer(list(self.inner.parameters()), lr)

    def settle(self) -> None:
        """Copy the running statistics of rank 0, as the next training step would."""
        for buffer in self.inner.buffers():
            dist.broadcast(buffer, src=0)


@final
class LocalSteps(Recipe):
    """``PostLocalSGDOptimizer``, with a hook that exchanges gradients in the first steps only."""

    interval = INTERVAL

    def __init__(self, stage: Stage, lr: float) -> None:
        self.inner = stage.build()
        # Otherwise the running statistics would be exchanged in every step.
        self.outer = _parallel(self.inner, stage, **{_SENDS_BUFFERS: False})
        steps = stage.batches // stage.group.world_size * stage.cell.epochs
        warmup = min(2 * INTERVAL, steps // 10)
        mine, _ = dist.new_subgroups(group_size=1)  # type: ignore[no-untyped-call]
        state = post_localSGD_hook.PostLocalSGDState(  # type: ignore[no-untyped-call]
            process_group=None, subgroup=mine, start_localSGD_iter=warmup
        )
        self.outer.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        with warnings.catch_warnings():
            # The package compiles unused optimizers in a way for which torch warns of deprecation.
            warnings.simplefilter("ignore", DeprecationWarning)
            from torch.distributed.optim import PostLocalSGDOptimizer
        self.optimizer = PostLocalSGDOptimizer(
            optim=stage.task.optimizer(list(self.inner.parameters()), lr),
            averager=PeriodicModelAverager(period=INTERVAL, warmup_steps=warmup),
        )

    @torch.no_grad()
    def settle(self) -> None:
        """Average the parameters and the running statistics."""
        everyone = dist.group.WORLD
        assert everyone is not None  # noqa: S101 - the ranks have joined
        average_parameters(self.inner.parameters(), everyone)
        for buffer in self.inner.buffers():
            dist.all_reduce(buffer)
            buffer.copy_(buffer / dist.get_world_size())


def train_gradient_average(stage: Stage) -> None:
    """Train with ``DistributedDataParallel``.

    Raises:
        DataError: An epoch has fewer batches than there are ranks.
    """
    _check(stage)
    _train(stage, GradientAverage(stage, stage.cell.lr * stage.cell.rate_factor))


def train_local_steps(stage: Stage) -> None:
    """Train with local steps and an average at a fixed interval.

    Raises:
        DataError: An epoch has fewer batches than there are ranks.
    """
    _check(stage)
    _train(stage, LocalSteps(stage, stage.cell.lr * stage.cell.rate_factor))


def _check(stage: Stage) -> None:
    batches, ranks = stage.batches, stage.group.world_size
    if batches < ranks:
        raise DataError(
            f"{counted(batches, 'batch')} of an epoch and {ranks} ranks: {stage.cell.mode} gives "
            "every rank the same number of batches, at least one; use more batches or fewer ranks"
        )


def _parallel(inner: nn.Module, stage: Stage, **options: Any) -> DistributedDataParallel:
    device = stage.group.device
    if device.type == "cuda":
        nccl = dist.new_group(backend="nccl")
        return DistributedDataParallel(
            inner, device_ids=[device.index], process_group=nccl, **options
        )
    return DistributedDataParallel(inner, **options)


def _train(stage: Stage, recipe: Recipe) -> None:
    """Train all epochs; in step ``s``, rank ``r`` takes batch ``s·W + r`` of the common order."""
    cell, group = stage.cell, stage.group
    loader = DataLoader(stage.data.train, cell.batch_size, device=group.device, seed=cell.seed)
    rate = None
    if (schedule := stage.schedule()) is not None:
        rate = ScheduledRate(recipe.optimizer, SteeredRate(schedule, cell.rate_factor))
    ms, speed = cell.ddp.simulated(group.rank)
    timer = BatchTimer(group.device, batch_ms=ms, speed=speed)
    for epoch in range(cell.epochs):
        stage.timeline.event("epoch_start", epoch=epoch)
        began = time.perf_counter()
        total, steps = _epoch(stage, recipe, loader, rate, timer, epoch)
        recipe.settle()
        timer.catch_up()
        train_ms = (time.perf_counter() - began) * 1000
        rows = group.gather([float(total), steps])
        loss = sum(row[0] for row in rows) / sum(row[1] for row in rows)
        stage.timeline.event("epoch_end", epoch=epoch, loss=loss)
        stage.end_epoch(
            epoch,
            recipe.inner,
            loss=loss,
            train_ms=train_ms,
            k=recipe.interval,
            counts=(recipe.interval,) * group.world_size,
            batches=(steps,) * group.world_size,
            scalars=model_metrics(recipe.inner),
        )


def _epoch(
    stage: Stage,
    recipe: Recipe,
    loader: DataLoader,
    rate: ScheduledRate | None,
    timer: BatchTimer,
    epoch: int,
) -> tuple[Tensor, int]:
    """Train this rank's batches of an epoch; return the sum of the losses and the batch count."""
    cell, group = stage.cell, stage.group
    steps = stage.batches // group.world_size
    total = torch.zeros((), device=group.device)
    timer.begin()
    for step in range(steps):
        first = step * group.world_size
        number = first + group.rank
        ((_, batch),) = loader.deliver(epoch, number, number + 1)
        if rate is not None:
            rate.apply(epoch * stage.batches + first)
        loss = stage.loss(recipe.outer, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if cell.max_grad_norm is not None:
            clip_grad_norm_(recipe.inner.parameters(), cell.max_grad_norm)
        recipe.optimizer.step()
        recipe.optimizer.zero_grad()
        total += loss.detach()
        timer.end_batch()
    return total, steps
