"""The halves of a step.

- First the user's function, the check of its result, and batches in pieces.
- Then the update: from gradients to updated parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from flodl.data.structure import changed, samples_in
from flodl.nn.clip import limited_norm
from flodl.train.step.learning_rate import ScheduledRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    from flodl.train.step.base import GradientWatch, StepSettings
    from flodl.train.step.learning_rate import Schedule
    from flodl.train.step.tuning import FusedStep


def forward_function(
    model: nn.Module, settings: StepSettings
) -> Callable[[nn.Module, Any], Tensor]:
    """Return the training function, under autocast if the settings ask for it."""
    train_fn, dtype = settings.train_fn, settings.autocast
    if dtype is None:
        return train_fn
    first = next(model.parameters(), None)
    device_type = first.device.type if first is not None else "cpu"

    def forward(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast(device_type, dtype):
            return train_fn(model, batch)

    return forward


def without_backward(
    forward: Callable[[nn.Module, Any], Tensor], optimizer: Optimizer
) -> Callable[[nn.Module, Any], Tensor]:
    """Return a training function that is refused if it computes the gradients itself.

    A plain backward would fail later, and one that keeps the graph would count twice.
    """

    def checked(model: nn.Module, batch: Any) -> Tensor:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        before = [(p.grad, -1 if p.grad is None else p.grad._version) for p in parameters]
        loss = forward(model, batch)
        for parameter, (grad, version) in zip(parameters, before, strict=True):
            now = parameter.grad
            if now is not None and (now is not grad or now._version != version):
                raise ValueError(
                    "train_fn called backward(): the Trainer does that itself. Return the loss "
                    "and leave out backward(), step() and zero_grad(). To call them yourself, "
                    "write your own loop with Trainer.setup(…)"
                )
        return loss

    return checked


def scalar_loss(loss: object) -> Tensor:
    """Check the result of a training function.

    Returns:
        The loss with shape ``[]``.

    Raises:
        ValueError: It is not a tensor, has several elements, or has no gradient.
    """
    if not isinstance(loss, Tensor):
        raise ValueError(
            f"train_fn returned a {type(loss).__name__}, not a loss tensor; "
            "end it with `return loss` (and without .item())"
        )
    if loss.numel() != 1:
        raise ValueError(
            f"train_fn returned a loss of shape {list(loss.shape)}; a loss is one number: reduce "
            "it, for instance with .mean()"
        )
    if not loss.requires_grad:
        raise ValueError(
            f"train_fn returned a loss of shape {list(loss.shape)} without gradient: it was "
            "detached or computed under no_grad, or every parameter is frozen"
        )
    return loss.reshape(())


def pieces(batch: Any, most: int | None) -> Iterator[tuple[Any, float]]:
    """Yield the pieces of a batch, and for each its part of the samples.

    Args:
        batch: Any structure of tensors, whose dimension 0 runs over the samples.
        most: Samples of a piece; None for the whole batch.
    """
    count = samples_in(batch) if most is not None else 0
    if most is None or count <= most:
        yield batch, 1.0
        return
    for start in range(0, count, most):
        stop = min(start + most, count)
        rows = partial(_rows, count=count, start=start, stop=stop)
        yield changed(batch, rows), (stop - start) / count


def _rows(tensor: Tensor, count: int, start: int, stop: int) -> Tensor:
    """Return some rows of a tensor that has a row per sample; another tensor stays whole."""
    return tensor[start:stop] if tensor.dim() and len(tensor) == count else tensor


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
