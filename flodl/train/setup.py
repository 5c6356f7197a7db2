"""A model that is ready for a loop of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

import torch

from flodl.train.rate import ScheduledRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from flodl.train.rate import Schedule


class Headed(Protocol):
    """What wraps a model as its ``graph``."""

    @property
    def graph(self) -> nn.Module:
        """The model."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class SetupConfig:
    """Settings of a training whose loop is the user's own; the meaning is the builder's."""

    device: torch.device | str | None = None
    """Default: the first usable CUDA device, else the CPU."""
    scheduler: Callable[[int], Schedule] | None = None
    """``factory(world_size)`` gives an object with ``lr(step)``."""
    max_grad_norm: float | None = None
    """Clip the gradients of each step to this total 2-norm."""

    def __post_init__(self) -> None:
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ValueError(f"max_grad_norm={self.max_grad_norm!r}: it must be greater than 0")


@final
class TrainingSetup:
    """A model that is ready for a loop of the user's own; see ``Trainer.setup``."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        config: SetupConfig,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._device = device
        self._max_grad_norm = config.max_grad_norm
        schedule = config.scheduler(1) if config.scheduler is not None else None
        self._rate = ScheduledRate(optimizer, schedule) if schedule is not None else None
        self._global_step = 0
        attached = callable(getattr(model, "set_optimizer", None))
        self._model_step: Callable[[], object] | None = (
            getattr(model, "step", None) if attached else None
        )

    @property
    def model(self) -> nn.Module:
        """The model, on its device."""
        return self._model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer over its parameters."""
        return self._optimizer

    @property
    def device(self) -> torch.device:
        """Where the model is, and the batches belong."""
        return self._device

    @property
    def global_step(self) -> int:
        """How often :meth:`step` was called."""
        return self._global_step

    def step(self) -> None:
        """Move the parameters and clear the gradients: once after each ``loss.backward()``.

        Clips and sets the learning rate first where the configuration says so.
        """
        if self._max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._max_grad_norm)
        if self._rate is not None:
            self._rate.apply(self._global_step)
        self._global_step += 1
        if self._model_step is not None:
            self._model_step()
            return
        self._optimizer.step()
        self._optimizer.zero_grad()
