"""The inputs that every mode gets, and the parts that all modes make in the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch

from flodl.ddp_bench.data import BenchData, prepare
from flodl.ddp_bench.models import TASKS, Task
from flodl.ddp_bench.records import EpochRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from flodl.data import Batch
    from flodl.ddp_bench.cell import Cell
    from flodl.ddp_bench.evaluation import Evaluation
    from flodl.monitor.timeline import Timeline
    from flodl.ranks.group import Group
    from flodl.train.step.learning_rate import Schedule


@final
@dataclass(frozen=True, slots=True)
class Stage:
    """One run on one of its ranks, ready to be trained."""

    cell: Cell
    data: BenchData
    group: Group
    """The ranks."""
    evaluate: Evaluation
    timeline: Timeline
    tell: Callable[[EpochRow], None]
    """Records the row of a finished epoch, on rank 0."""
    keep: Callable[[int, nn.Module], None]
    """Saves the model if due, on rank 0; called with the number of finished epochs."""

    @property
    def task(self) -> Task:
        """The task: model, data, loss, optimizer and evaluation."""
        return self.cell.task

    @property
    def batches(self) -> int:
        """Number of batches of an epoch, of all ranks together."""
        return len(self.data.train) // self.cell.batch_size

    def build(self) -> nn.Module:
        """Make the model on the device, the same on every rank."""
        torch.manual_seed(self.cell.seed)
        return self.task.build().to(self.group.device)

    def end_epoch(self, epoch: int, model: nn.Module, **measured: Any) -> None:
        """Evaluate the model on all ranks; report the epoch and save the model on rank 0.

        Args:
            epoch: Number of the epoch, counted from 0.
            model: The trained model.
            **measured: The other values of the :class:`~flodl.ddp_bench.records.EpochRow`.
        """
        figure = self.evaluate(model)
        if self.group.leads:
            row = EpochRow(
                epoch=epoch,
                eval=figure,
                eval_ms=self.evaluate.ms,
                ranks_apart=self.evaluate.ranks_apart,
                **measured,
            )
            self.tell(row)
            self.keep(epoch + 1, model)


@final
@dataclass(frozen=True, slots=True)
class ModelFactory:
    """``(device) -> module``, by the name of a task."""

    model: str

    def __call__(self, device: torch.device) -> nn.Module:
        """Make the model."""
        return TASKS[self.model].build().to(device)


@final
@dataclass(frozen=True, slots=True)
class OptimizerFactory:
    """``(parameters) -> optimizer``, by the name of a task."""

    model: str
    lr: float

    def __call__(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return TASKS[self.model].optimizer(parameters, self.lr)


@final
@dataclass(frozen=True, slots=True)
class ScheduleFactory:
    """``(world_size) -> schedule`` over the batches of all ranks, by the name of a task."""

    model: str
    lr: float
    batches: int

    def __call__(self, world_size: int) -> Schedule:  # noqa: ARG002 - positions count all ranks
        """Make the schedule."""
        make = TASKS[self.model].schedule
        assert make is not None  # noqa: S101 - asked for only where there is one
        return make(self.lr, self.batches)


@final
@dataclass(frozen=True, slots=True)
class TrainStep:
    """``(model, batch) -> loss``, by the name of a task."""

    model: str
    mirrored: bool

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute the loss of one batch."""
        task = TASKS[self.model]
        inputs, target = prepare(
            task, batch["input"], batch["target"], mirrored=self.mirrored, training=True
        )
        return task.loss(model, model(inputs), target)
