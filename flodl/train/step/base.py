"""The settings of a training step, and the interface of what reads its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from flodl.monitor.ledger import TimeLedger
    from flodl.train.step.learning_rate import Schedule
    from flodl.train.step.precision import CountedScaler
    from flodl.train.step.step_values import StepValues

    TrainFn: TypeAlias = Callable[[Any, Any], Tensor]


class GradientWatch(Protocol):
    """Reads weights and gradients of a step; changes nothing."""

    def __call__(self, global_step: int, scale: float = 1.0, *, gradients: bool = True) -> None:
        """Read a step.

        Args:
            global_step: Optimizer steps done before.
            scale: Factor of the loss, and so of the gradients.
            gradients: Whether the gradients of the step can be read.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSettings:
    """The settings of a step, the same for every engine.

    Attributes:
        train_fn: ``(model, batch) -> loss``, a scalar.
        schedule: Learning rate by optimizer step; None keeps the rates of the optimizer.
        max_grad_norm: Clip the gradients to this total 2-norm.
        autocast: Compute the forward pass in this dtype where torch considers that safe.
        scaler: Scales the loss against underflow in fp16; decides whether the optimizer steps.
        after_step: Called after every optimizer step that changed the parameters.
        reduce: Called when the gradients of a step are complete, before they are clipped and used.
            If several ranks take one step together, it replaces them by those of all ranks.
        ledger: Records the time of forward, backward and optimizer.
        values: Takes the learning rate of a schedule and the norm of clipped gradients.
        micro_batch: Samples that are computed at once; None for whole batches.
    """

    train_fn: TrainFn
    schedule: Schedule | None = None
    max_grad_norm: float | None = None
    autocast: torch.dtype | None = None
    scaler: CountedScaler | None = None
    after_step: Callable[[], object] | None = None
    ledger: TimeLedger | None = None
    reduce: Callable[[], object] | None = None
    values: StepValues | None = None
    micro_batch: int | None = None
