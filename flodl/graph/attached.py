"""Training with parts attached to a graph: optimizer, schedule, loader and loss."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.errors import StateError
from flodl.graph.base import GraphBase
from flodl.nn.optim import set_rate

if TYPE_CHECKING:
    from flodl.data import Batch, DataLoader
    from flodl.data.loader import EpochIterator


class HasRate(Protocol):
    """A learning-rate schedule for ``set_scheduler``."""

    def lr(self, step: int, /) -> float:
        """The learning rate of a step, counted from 0."""


@dataclass(frozen=True, slots=True)
class LossContext:
    """The argument of a graph's loss function.

    Attributes:
        output: The output of the graph for the batch.
        batch: The batch itself, including targets.
        tags: The value of every tag.
        traces: Published traces of the loops, by name.
    """

    output: Tensor
    batch: Batch
    tags: Mapping[str, Tensor]
    traces: Mapping[str, list[Tensor]]


LossFunction = Callable[[LossContext], Tensor]


@dataclass(slots=True, eq=False)
class Progress:
    """The attached parts and the counters of a training."""

    optimizer: Optimizer | None = None
    rates: list[float] = field(default_factory=list)
    uncovered: list[tuple[str, nn.Parameter]] = field(default_factory=list)
    scheduler: HasRate | None = None
    lr_scale: float = 1.0
    loader: DataLoader | None = None
    forward_input: str | int = ""
    loss: LossFunction | None = None
    training_step: int = 0
    step_count: int = 0
    epoch_step: int = 0
    epoch_count: int = 0


class Attached(GraphBase):
    """The part of a graph's interface that trains without a Trainer."""

    _progress: Progress

    # --- Optimizer and schedule ------------------------------------------------------------

    def set_optimizer(self, factory: Callable[[list[nn.Parameter]], Optimizer]) -> None:
        """Attach an optimizer for :meth:`step`.

        Args:
            factory: Called once with all parameters; returns the optimizer. Call ``to`` before.

        Raises:
            ValueError: The factory did not return an optimizer.
        """
        optimizer = factory(list(self.parameters()))
        if not isinstance(optimizer, Optimizer):
            raise ValueError(
                f"set_optimizer needs a function that returns a torch optimizer, "
                f"it returned {type(optimizer).__name__}"
            )
        progress = self._progress
        progress.optimizer = optimizer
        progress.rates = [float(group["lr"]) for group in optimizer.param_groups]
        covered = {id(p) for group in optimizer.param_groups for p in group["params"]}
        progress.uncovered = [(n, p) for n, p in self.named_parameters() if id(p) not in covered]
        self._warn_about_uncovered()

    def set_scheduler(self, scheduler: HasRate | None) -> None:
        """Let a schedule set the learning rate at every :meth:`step`; None removes the schedule.

        Args:
            scheduler: ``scheduler.lr(training_step)`` is the rate of the first parameter group.
                The other groups keep their ratio to it.
        """
        if scheduler is not None and not callable(getattr(scheduler, "lr", None)):
            raise ValueError(f"a scheduler has a method lr(step), {scheduler!r} has none")
        self._progress.scheduler = scheduler

    def set_lr_scale(self, factor: float = 1.0) -> None:
        """Multiply every scheduled learning rate by ``factor``."""
        self._progress.lr_scale = float(factor)

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of all parameter groups.

        Raises:
            StateError: No optimizer is attached.
        """
        if self._progress.optimizer is None:
            raise StateError("no optimizer is attached: call set_optimizer first")
        for group in self._progress.optimizer.param_groups:
            set_rate(group, lr)

    def step(self) -> None:
        """Finish a training step: apply the schedule, update, clear gradients, call ``end_step``.

        Without an optimizer only the counters advance.
        """
        progress = self._progress
        if progress.optimizer is not None:
            if progress.uncovered:
                self._warn_about_uncovered()
            if progress.scheduler is not None:
                self._apply_schedule(progress.optimizer, progress.scheduler)
            progress.optimizer.step()
            progress.optimizer.zero_grad()
        progress.training_step += 1
        self.end_step()

    @property
    def training_step(self) -> int:
        """How many times :meth:`step` has run."""
        return self._progress.training_step

    def end_step(self) -> None:
        """Mark the end of a training step."""
        raise NotImplementedError

    def _apply_schedule(self, optimizer: Optimizer, scheduler: HasRate) -> None:
        progress = self._progress
        lr = scheduler.lr(progress.training_step) * progress.lr_scale
        first = progress.rates[0]
        for group, rate in zip(optimizer.param_groups, progress.rates, strict=False):
            set_rate(group, lr * (rate / first if first else 1.0))

    def _warn_about_uncovered(self) -> None:
        """Warn once per trainable parameter that the optimizer does not hold."""
        uncovered = self._progress.uncovered
        missed = [name for name, parameter in uncovered if parameter.requires_grad]
        if missed:
            self._progress.uncovered = [(n, p) for n, p in uncovered if not p.requires_grad]
            warnings.warn(
                f"the optimizer does not hold {len(missed)} trainable parameter(s), which will "
                f"never change: {', '.join(missed[:3])}; build it after moving or thawing them",
                stacklevel=3,
            )

    # --- Data and loss ---------------------------------------------------------------------

    def set_data_loader(self, loader: DataLoader, forward_input: str | int) -> None:
        """Attach a loader whose batches :meth:`forward_batch` feeds to the graph.

        Args:
            loader: Its ``names`` must include all auxiliary inputs of the graph except optional
                ones. If it learns the names from the first batch, they are checked then.
            forward_input: The field that feeds the entry, by name or by position.

        Raises:
            ValueError: A name is missing; the message lists the existing ones.
        """
        optional, names = self.topology.optional, loader.names
        roles = [(port, "the input") for port in self.topology.inputs[1:] if port not in optional]
        if isinstance(forward_input, str):
            roles.insert(0, (forward_input, "forward_input"))
        for name, role in roles if names is not None else ():
            if name not in (names or ()):
                raise ValueError(
                    f"the loader has no field for {role} {name!r}; its fields are: "
                    f"{', '.join(names or ())}"
                )
        self._progress.loader = loader
        self._progress.forward_input = forward_input

    def epoch(self, epoch: int) -> EpochIterator:
        """The batches of one epoch of the attached loader.

        Args:
            epoch: Counted from 0; the order depends on it and on the loader's seed.
        """
        return self._loader().epoch(epoch)

    def forward_batch(self, batch: Batch) -> Tensor:
        """Run the graph on the fields of a batch; fields without an input are targets.

        Raises:
            StateError: No loader is attached.
        """
        self._loader()
        entry = batch[self._progress.forward_input]
        optional = self.topology.optional
        ports = (
            None if name in optional and not batch.has(name) else batch[name]
            for name in self.topology.inputs[1:]
        )
        output: Tensor = self(entry, *ports)
        return output

    def set_loss_fn(self, function: LossFunction | None) -> None:
        """Attach the loss, a function of a :class:`LossContext`; None removes it."""
        self._progress.loss = function

    def loss(self, batch: Batch) -> Tensor:
        """Run the graph on a batch and return the attached loss of its output.

        Raises:
            StateError: No loader or no loss is attached.
        """
        if self._progress.loss is None:
            raise StateError("no loss is attached: call set_loss_fn first")
        output = self.forward_batch(batch)
        return self._progress.loss(
            LossContext(output, batch, self._captured_tags(), self._captured_traces())
        )

    def _captured_traces(self) -> dict[str, list[Tensor]]:
        raise NotImplementedError

    def _loader(self) -> DataLoader:
        if self._progress.loader is None:
            raise StateError("no loader is attached: call set_data_loader first")
        return self._progress.loader
