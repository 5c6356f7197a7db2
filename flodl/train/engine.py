"""One training step over a batch, as a strategy.

Every engine gives the same numbers as :class:`EagerEngine`, which says what a step is; others may
compile it or replay it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch
from torch import Tensor

from flodl.train.rate import Schedule, ScheduledRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from flodl.data import Batch
    from flodl.train.losses import LossLog

    TrainFn: TypeAlias = Callable[[Any, Batch], Tensor]


class StepEngine(ABC):
    """Runs one training step."""

    @abstractmethod
    def step(self, batch: Batch, losses: LossLog) -> Tensor:
        """Train on one batch.

        Args:
            batch: On the device of the model.
            losses: Takes the loss before the optimizer moves anything, so that it can refuse.

        Returns:
            The loss before the step: detached, shape ``[]``, on the device.

        Raises:
            ValueError: The training function did not return a scalar loss.
            DivergedError: ``losses`` refused the loss.
        """


@final
class EagerEngine(StepEngine):
    """Forward, backward, clip, learning rate, optimizer, one after the other.

    Args:
        model: In training mode, on its device. Its ``end_step``, where it has one, ends each step.
        optimizer: Over the parameters of the model.
        train_fn: ``(model, batch) -> loss``.
        schedule: Learning rate by optimizer step; None keeps what the optimizer has.
        max_grad_norm: Clip the gradients to this total 2-norm.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        train_fn: TrainFn,
        *,
        schedule: Schedule | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._train_fn = train_fn
        self._rate = ScheduledRate(optimizer, schedule) if schedule is not None else None
        self._max_grad_norm = max_grad_norm
        self._end_step: Callable[[], object] | None = getattr(model, "end_step", None)
        self._global_step = 0

    def step(self, batch: Batch, losses: LossLog) -> Tensor:
        """Train on one batch."""
        loss = scalar_loss(self._train_fn(self._model, batch))
        seen = loss.detach()
        losses.add(seen)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._max_grad_norm)
        if self._rate is not None:
            self._rate.apply(self._global_step)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._global_step += 1
        if self._end_step is not None:
            self._end_step()
        return seen


def scalar_loss(loss: object) -> Tensor:
    """Check what a training function returned.

    Returns:
        The loss with shape ``[]``.

    Raises:
        ValueError: It is no tensor, has several elements, or no gradient leads back from it.
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
