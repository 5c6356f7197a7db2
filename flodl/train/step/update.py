"""The second half of a step: from gradients to updated parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch
from torch import nn

from flodl.nn.clip import limited_norm
from flodl.train.step.learning_rate import ScheduledRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from flodl.train.step.base import GradientWatch, StepSettings
    from flodl.train.step.fused import FusedStep
    from flodl.train.step.learning_rate import Schedule


@final
class Update:
    """Clips, sets the learning rate, steps the optimizer and clears the gradients.

    Args:
        model: Its ``end_step``, if it has one, ends each step.
        optimizer: Over the parameters of the model.
        settings: Schedule, clipping, scaler and what follows a step.

    Attributes:
        step: Updates the parameters and clears the gradients; None uses the optimizer's own
            ``step()`` and ``zero_grad()``.
        watch: Reads the gradients of each step before they are clipped and used.
    """

    step: FusedStep | None
    watch: GradientWatch | None

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, settings: StepSettings
    ) -> None:
        self.step = self.watch = None
        self._model = model
        self._optimizer = optimizer
        self.set_schedule(settings.schedule)
        self._max_grad_norm = settings.max_grad_norm
        self._scaler = settings.scaler
        self._after_step = settings.after_step
        self._reduce = settings.reduce
        self._values = settings.values
        self._end_step: Callable[[], object] | None = getattr(model, "end_step", None)

    def apply(self, global_step: int) -> None:
        """Update the parameters with their gradients.

        Args:
            global_step: Optimizer steps done before this one.
        """
        if self._reduce is not None:
            self._reduce()  # it may end the step before anything is recorded
        self.prepare(global_step)
        if self.watch is not None:
            scale = self._scaler.scale_factor() if self._scaler is not None else 1.0
            self.watch(global_step, scale)
        moved = True
        if self._scaler is not None:
            moved = self._scaler.step(self._optimizer, clip_norm=self._max_grad_norm)
            if self._scaler.grad_norm is not None:
                self.tell_norm(global_step, self._scaler.grad_norm)
            self._optimizer.zero_grad()
        else:
            if self._max_grad_norm is not None:
                norm = limited_norm(self._model.parameters(), self._max_grad_norm)
                self.tell_norm(global_step, norm)
            self._move()
        self.conclude(moved=moved)

    def in_graph(self) -> torch.Tensor | None:
        """Clip, step and clear inside of a CUDA graph; return the norm before, if it is clipped."""
        norm = None
        if self._max_grad_norm is not None:
            parameters = self._model.parameters()
            norm = torch.nn.utils.clip_grad_norm_(parameters, self._max_grad_norm)
        self._move()
        return norm

    def _move(self) -> None:
        if self.step is not None:
            self.step()
        else:
            self._optimizer.step()
            self._optimizer.zero_grad()

    def set_schedule(self, schedule: Schedule | None) -> None:
        """Take the learning rates from this schedule; None keeps those of the optimizer."""
        self._rate: ScheduledRate | None = None
        if schedule is not None:
            self._rate = ScheduledRate(self._optimizer, schedule)

    def prepare(self, global_step: int) -> None:
        """Set the learning rate of the next step."""
        if self._rate is not None:
            rate = self._rate.apply(global_step)
            if self._values is not None:
                self._values.rates.append((global_step, rate))

    def tell_norm(self, global_step: int, norm: torch.Tensor) -> None:
        """Record the total norm of the gradients before they were clipped.

        Args:
            global_step: Optimizer steps done before this one.
            norm: One element; nobody may write to it afterwards.
        """
        # Reading a tensor that is shared among processes would wait for all of them.
        if self._values is not None and type(norm) is torch.Tensor:
            self._values.norms.append((global_step, norm))

    def conclude(self, *, moved: bool = True) -> None:
        """End the step; tell it if the parameters have changed."""
        if moved and self._after_step is not None:
            self._after_step()
        if self._end_step is not None:
            self._end_step()
