"""A model that is ready for the user's own training loop."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

import torch

from flodl.errors import StateError
from flodl.graph import Graph, LossContext
from flodl.nn.modes import begin_training
from flodl.nn.optim import set_rate
from flodl.ranks.settings import DdpConfig
from flodl.setting import Above, Settings, setting
from flodl.train.plain_loop.shared_loop import SharedLoop, joined
from flodl.train.run.run_records import REHEARSAL
from flodl.train.settings.user_parts import GivenParts, build_model, build_optimizer
from flodl.train.step.learning_rate import (
    Schedule,
    ScheduledRate,
    SteeredRate,
    checked_schedule,
    make_schedule,
    rates_of,
    set_rates,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

    from flodl.data import Batch, DataLoader
    from flodl.ranks.clocks import Stopwatch
    from flodl.ranks.group import Group
    from flodl.train.plain_loop.joined_rows import Cut
    from flodl.train.plain_loop.sharing import Window
    from flodl.train.settings import ModelFactory, OptimizerFactory


class HasGraph(Protocol):
    """An object that wraps a model as its ``graph``, such as a task head."""

    @property
    def graph(self) -> nn.Module:
        """The model."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class SetupConfig(Settings):
    """Settings for the user's own training loop; their meaning is that of the builder."""

    device: torch.device | str | None = None
    """Default: the first usable CUDA device, else the CPU."""
    scheduler: Callable[[int], Schedule] | None = None
    """``factory(world_size)`` returns an object with ``lr(step)``."""
    max_grad_norm: float | None = setting(None, Above())
    """Clip the gradients of each step to this total 2-norm."""


@final
class TrainingSetup:
    """A model that is ready for the user's own training loop; see ``Trainer.setup``.

    A call of this object calls the model. With several ranks there are two ways to go through the
    data:

    1. *A plain loop*: every rank iterates over the same batches. In training mode and with
       gradients, a call of the model computes the rows of this rank and returns the rows of all
       ranks. Any loss of the whole output gives the same gradient as one process would. Faster
       ranks compute more rows, see :attr:`chunk_ratios`. Tags of a Graph have the rows of all
       ranks, too.
    2. *Windows*: call :meth:`set_data_loader` and :meth:`set_loss_fn`. Then :meth:`epoch` trains
       some batches per rank before each step; faster ranks train more batches.

    Some methods exchange data, so call them on all ranks: calls of the model that train,
    :meth:`step` and :meth:`epoch`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: SetupConfig,
        loop: SharedLoop,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._max_grad_norm = config.max_grad_norm
        self._loop = loop
        self._rate: ScheduledRate | None = None
        self._steered = SteeredRate(None)
        if config.scheduler is not None:
            self.set_scheduler(make_schedule(config.scheduler, loop.group.world_size))
        self._steps = 0
        self._loader: DataLoader | None = None
        self._forward_input: str | int = ""
        self._loss: Callable[[LossContext], Tensor] | None = None
        attached = callable(getattr(model, "set_optimizer", None))
        self._model_step: Callable[[], object] | None = (
            getattr(model, "step", None) if attached else None
        )
        # So that model.step() of a Graph and optimizer.step() do the same as step().
        optimizer.register_step_pre_hook(self._before_update)

    # --- Properties ------------------------------------------------------------------------

    @property
    def model(self) -> nn.Module:
        """The model, on its device."""
        return self._model

    @property
    def graph(self) -> nn.Module:
        """The model, for functions that take an object with a ``graph``."""
        return self._model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer over the parameters of the model."""
        return self._optimizer

    @property
    def device(self) -> torch.device:
        """The device of the model; batches belong there."""
        return self._loop.group.device

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """The device of every rank, with the name that it has on its host."""
        return self._loop.devices

    @property
    def rank(self) -> int:
        """Number of this process; rank 0 prints and writes."""
        return self._loop.group.rank

    @property
    def world_size(self) -> int:
        """Number of processes that train this model."""
        return self._loop.group.world_size

    @property
    def is_distributed(self) -> bool:
        """Whether several processes train this model."""
        return self.world_size > 1

    @property
    def has_el_che(self) -> bool:
        """Whether :meth:`epoch` gives faster ranks more batches; a plain loop has no windows."""
        return self._loop.has_el_che

    @property
    def chunk_ratios(self) -> tuple[float, ...]:
        """The part of a batch that each rank computes in a plain loop.

        The parts are equal for 10 steps. Then they follow the speed of the ranks, with at least
        0.05 each, and are computed again every 50 steps. A graph that carries state keeps equal
        parts, because the rows of its state cannot move to another rank.
        """
        return self._loop.shares.ratios

    @property
    def throughput(self) -> tuple[float, ...]:
        """Samples per millisecond of each rank in a plain loop; 0 before the first step."""
        return self._loop.shares.throughput

    @property
    def shard_sizes(self) -> Cut:
        """Rows that each rank computed in the latest call of a plain loop."""
        scatter = self._loop.scatter
        return (0,) * self.world_size if scatter is None else scatter.last_cut

    @property
    def training_step(self) -> int:
        """Number of steps so far."""
        return self._steps

    @property
    def global_step(self) -> int:
        """The same as :attr:`training_step`."""
        return self._steps

    # --- Learning rate ---------------------------------------------------------------------

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of every parameter group; a schedule overwrites it at each step."""
        for group in self._optimizer.param_groups:
            set_rate(group, lr * self.lr_scale)

    def set_scheduler(self, schedule: Schedule | None) -> None:
        """Take the learning rate of step ``s`` from ``schedule.lr(s)``; None stops doing so."""
        checked = None if schedule is None else checked_schedule(schedule)
        self._steered = SteeredRate(checked, self.lr_scale)
        self._rate = None if checked is None else ScheduledRate(self._optimizer, self._steered)

    def set_lr_scale(self, factor: float) -> None:
        """Multiply the learning rates; flodl never scales them by the number of ranks itself.

        Raises:
            ValueError: The factor is not greater than 0.
        """
        if not factor > 0:
            raise ValueError(f"lr_scale={factor!r}: it must be greater than 0")
        if self._rate is None:
            rates = rates_of(self._optimizer)
            set_rates(self._optimizer, [rate / self.lr_scale * factor for rate in rates])
        self._steered.scale = float(factor)

    @property
    def lr_scale(self) -> float:
        """The factor of the learning rates."""
        return self._steered.scale

    # --- The loop --------------------------------------------------------------------------

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the model."""
        return self._model(*inputs, **named)

    __call__ = forward

    def step(self) -> None:
        """Update the parameters and clear the gradients, once after each ``loss.backward()``.

        With several ranks, it first exchanges gradients and buffers. It also clips the gradients
        and sets the learning rate if the configuration asks for it.
        """
        if self._model_step is not None:
            self._model_step()
            return
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _before_update(self, *_: object) -> None:
        self._loop.before_update(self._max_grad_norm)
        if self._rate is not None:
            self._rate.apply(self._steps)
        self._steps += 1

    # --- Windows ---------------------------------------------------------------------------

    def set_data_loader(self, loader: DataLoader, forward_input: str | None = None) -> None:
        """Attach a loader for :meth:`epoch`; every rank must make the same loader.

        Args:
            loader: Its batches belong on :attr:`device`.
            forward_input: The field that the model is called with; None: the first field. Auxiliary
                inputs of a Graph are the fields with their names.

        Raises:
            ValueError: The loader has no such field; the message lists its fields.
        """
        names = loader.names
        name: str | int = 0 if forward_input is None else forward_input
        if names is not None and forward_input is not None and forward_input not in names:
            raise ValueError(
                f"the loader has no field {name!r}; its fields are: {', '.join(names)}"
            )
        if isinstance(self._model, Graph):
            self._model.set_data_loader(loader, name)
        self._loader, self._forward_input = loader, name

    def set_loss_fn(self, function: Callable[[LossContext], Tensor]) -> None:
        """Attach the loss for :meth:`epoch`: the mean over the samples of ``context.batch``."""
        if isinstance(self._model, Graph):
            self._model.set_loss_fn(function)
        self._loss = function

    def epoch(self, epoch: int) -> Iterator[Window]:
        """Train an epoch: forward, loss and backward of each batch; call :meth:`step` per window.

        Every sample is trained once, on one of the ranks::

            for window in setup.epoch(epoch):
                setup.step()

        On one rank, and if :attr:`has_el_che` is False, a window is one batch per rank.

        Args:
            epoch: Counted from 0; decides the order.

        Raises:
            StateError: A loader or a loss is missing, or a window was not followed by a step.
        """
        if self._loader is None or self._loss is None:
            missing = "set_data_loader" if self._loader is None else "set_loss_fn"
            raise StateError(f"epoch() has nothing to train yet: call {missing} first")
        return self._loop.epoch(epoch, self._loader, self._loss_of)

    def _loss_of(self, batch: Batch) -> Tensor:
        if isinstance(self._model, Graph):
            return self._model.loss(batch)
        assert self._loss is not None  # noqa: S101 - epoch() has checked it
        output = self._model(batch[self._forward_input])
        return self._loss(LossContext(output, batch, {}, {}))


def model_of(head: HasGraph | Graph) -> nn.Module:
    """Return the model that a head wraps; a Graph is its own model.

    Raises:
        TypeError: There is no model.
        ValueError: Its parameters have no values yet, so there is nothing to train from.
    """
    model = head if isinstance(head, Graph) else getattr(head, "graph", None)
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"setup_head needs an object whose .graph is a torch.nn.Module; that of "
            f"{type(head).__name__} is {model!r}; pass a module itself to Trainer.setup"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError(
            "the parameters of the head's graph have no values (device 'meta'): load a checkpoint "
            "into it, or build it on a device, before setup_head"
        )
    return model


def summary(setup: TrainingSetup) -> str:
    """Return one line: the devices, the size of the model, and how much of it is trained."""
    names = ", ".join(map(str, setup.devices))
    where = f"{setup.world_size} ranks ({names})" if setup.is_distributed else names
    how = ", more batches on faster ones" if setup.has_el_che else ""
    parameters = list(setup.model.parameters())
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    return (
        f"  training on {where}{how}: {trained:,} of {sum(p.numel() for p in parameters):,} "
        "parameters"
    )


def prepare(
    model: nn.Module,
    factory: ModelFactory | None,
    optimizer: OptimizerFactory | torch.optim.Optimizer,
    config: SetupConfig | DdpConfig,
    group: Group | None = None,
    watch: Stopwatch | None = None,
) -> TrainingSetup:
    """Make the setup that ``Trainer.setup`` returns.

    Args:
        model: Any module, on any device.
        factory: Makes the model if it cannot be moved.
        optimizer: ``(parameters) -> optimizer``, or an optimizer over parameters of the model.
        config: Settings.
        group: The ranks; default: the ranks that a launcher started this process with.
        watch: Measures the speed of this rank; None: with the clock, or with the events of a GPU.

    Raises:
        ValueError: The device does not exist here, or the optimizer belongs to other parameters.
            Or this is a rehearsal.
        DistributedError: The models of the ranks differ, or the environment of a launcher is
            incomplete.
    """
    if os.environ.get(REHEARSAL):
        raise ValueError(
            "a training loop of your own cannot be rehearsed: train with Trainer.builder, or start "
            "the program without `fdl plan --try`"
        )
    make_optimizer = (
        GivenParts(model, optimizer).optimizer_over
        if isinstance(optimizer, torch.optim.Optimizer)
        else optimizer
    )
    ranks = config if isinstance(config, DdpConfig) else None
    own = (
        config
        if isinstance(config, SetupConfig)
        else SetupConfig(max_grad_norm=config.max_grad_norm)
    )
    group = group or joined(own.device)
    try:
        model.to(group.device)
    except NotImplementedError:  # parameters without values, on the device "meta"
        if factory is None:
            raise
        model = build_model(factory, group.device)
    made = build_optimizer(make_optimizer, model)
    attach = getattr(model, "set_optimizer", None)
    if callable(attach):
        attach(lambda _: made)
    begin_training(model)
    return TrainingSetup(model, made, own, SharedLoop(model, group, ranks, watch))
