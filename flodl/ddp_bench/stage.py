"""The inputs that every mode gets, and the parts that all modes make in the same way."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch

from flodl.ddp_bench.data import BenchData, prepare
from flodl.ddp_bench.records import EpochRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor, nn

    from flodl.data import Batch
    from flodl.ddp_bench.cell import Cell
    from flodl.ddp_bench.evaluation import Evaluation
    from flodl.ddp_bench.models import Task
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

    def model_on(self, device: torch.device) -> nn.Module:
        """Make the model; used as a model factory."""
        return self.task.build().to(device)

    def build(self) -> nn.Module:
        """Make the model on the device, the same on every rank."""
        torch.manual_seed(self.cell.seed)
        return self.model_on(self.group.device)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the optimizer; used as an optimizer factory."""
        return self.task.optimizer(parameters, self.cell.lr)

    def schedule(self) -> Schedule | None:
        """Make the schedule, over the batches of all ranks; None if the task has none."""
        make = self.task.schedule
        return None if make is None else make(self.cell.lr, self.batches * self.cell.epochs)

    def loss(
        self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None
    ) -> Tensor:
        """Compute the loss of one batch; used as a training function.

        Args:
            model: What is trained; the model, or what wraps it.
            batch: Samples of the training set.
            generator: Generator for random crops; None: torch's default one.
        """
        inputs, target = prepare(
            self.task,
            batch["input"],
            batch["target"],
            mirrored=self.data.mirrored,
            training=True,
            generator=generator,
        )
        return self.task.loss(model, model(inputs), target)

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


@contextmanager
def variables(**changes: str | None) -> Iterator[None]:
    """Change environment variables inside the context; None unsets one."""
    before = {name: os.environ.get(name) for name in changes}
    _set(changes)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
