"""What a training step is, and the interface of those who carry it out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from flodl.data import Batch
    from flodl.monitor.ledger import TimeLedger
    from flodl.train.losses import LossLog
    from flodl.train.rate import Schedule

    TrainFn: TypeAlias = Callable[[Any, Batch], Tensor]


class LossScaler(Protocol):
    """What fp16 needs, see :class:`flodl.GradScaler`."""

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""

    def step(self, optimizer: torch.optim.Optimizer, clip_norm: float | None = None) -> bool:
        """Unscale, clip and step unless a gradient is not finite; tell whether it stepped."""

    def update(self) -> None:
        """Adjust the scale."""


class Average(Protocol):
    """A running average of the weights, see :class:`flodl.train.ema.WeightAverage`."""

    def update(self) -> None:
        """Take the weights after an optimizer step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSettings:
    """How a step goes, the same for every engine.

    Attributes:
        train_fn: ``(model, batch) -> loss``, a scalar.
        schedule: Learning rate by optimizer step; None keeps what the optimizer has.
        max_grad_norm: Clip the gradients to this total 2-norm.
        autocast: Compute the forward pass in this dtype where torch deems it safe.
        scaler: Scales the loss against underflow in fp16; decides whether the optimizer steps.
        average: Told after every optimizer step.
        reduce: Called with the gradients of a step in place, before they are clipped and used:
            where several ranks take one step together, it makes them those of all.
        ledger: Where the time of forward, backward and optimizer is booked.
    """

    train_fn: TrainFn
    schedule: Schedule | None = None
    max_grad_norm: float | None = None
    autocast: torch.dtype | None = None
    scaler: LossScaler | None = None
    average: Average | None = None
    ledger: TimeLedger | None = None
    reduce: Callable[[], object] | None = None


class StepEngine(ABC):
    """Runs training steps.

    Every engine gives the numbers of :class:`~flodl.train.engines.eager.EagerEngine` up to
    rounding; that one gives those of a plain loop, bit by bit.

    Attributes:
        name: How it is asked for and reported.
        global_step: Optimizer steps done in the whole run; a resumed run sets it.
        settings: How a step goes.
    """

    name: ClassVar[str]
    global_step: int
    settings: StepSettings

    @abstractmethod
    def step(self, batch: Batch, losses: LossLog, *, parts: int = 1, closes: bool = True) -> None:
        """Train on one batch, or on one part of a batch that is too large for the memory.

        Args:
            batch: On the device of the model.
            losses: Takes the loss of this (part of a) batch before the optimizer moves anything,
                so that it can refuse.
            parts: Parts the whole batch has; the loss of each counts ``1 / parts``.
            closes: Whether this is the last part: only then do the parameters move.

        Raises:
            ValueError: The training function did not return a scalar loss.
            DivergedError: ``losses`` refused the loss.
        """

    def follow(self) -> None:
        """Take an optimizer step without a batch of one's own: with gradients of other ranks."""
        raise NotImplementedError(f"the {self.name} engine takes no steps together with others")

    @abstractmethod
    def set_schedule(self, schedule: Schedule | None) -> None:
        """Take the learning rates from another schedule from now on; None leaves them alone."""

    def present(self) -> None:  # noqa: B027 - most engines leave the layout alone
        """Lay out parameters, gradients and optimizer state as the user did.

        Call it before code outside of a step may see them: callbacks, evaluation, checkpoints, and
        when an exception ends the training. The next step lays them out for speed again.
        """

    def decision(self) -> Mapping[str, Any]:
        """Return what was decided about the steps, as JSON values for a checkpoint."""
        return {}

    def adopt(self, decision: Mapping[str, Any]) -> None:  # noqa: B027 - only auto decides
        """Go on with what :meth:`decision` told in an earlier run; before the first step."""

    def report(self) -> Mapping[str, object]:
        """Facts about how the steps were carried out, as JSON values."""
        return {"engine": self.name}

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Let go of background work; the values of model and optimizer stay as they are."""
