"""The settings of a training step, and the interface of the engines that compute it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from flodl.monitor.ledger import TimeLedger
    from flodl.train.step.learning_rate import Schedule
    from flodl.train.step.precision import CountedScaler
    from flodl.train.step.step_values import LossLog, StepValues

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


class StepEngine(ABC):
    """Runs training steps.

    Every engine gives the numbers of :class:`~flodl.train.step.tuned.EagerEngine` up to
    rounding. That engine gives the numbers of a plain loop, bit by bit.

    Attributes:
        name: The name in settings and reports.
        global_step: Optimizer steps done in the whole run; a resumed run sets it.
        settings: The settings of a step.
    """

    name: ClassVar[str]
    global_step: int
    settings: StepSettings

    @abstractmethod
    def step(self, batch: Any, losses: LossLog, *, parts: int = 1, closes: bool = True) -> None:
        """Train on one batch, or on one part of a batch that is too large for the memory.

        Args:
            batch: On the device of the model.
            losses: Takes the loss of this batch, or part of a batch, before the optimizer changes
                anything. So it can refuse the loss.
            parts: Number of parts of the whole batch; the loss of each part counts ``1 / parts``.
            closes: Whether this is the last part; only then does the optimizer step.

        Raises:
            ValueError: The training function did not return a scalar loss.
            DivergedError: ``losses`` refused the loss.
        """

    def watch_gradients(self, watch: GradientWatch) -> None:
        """Call this when the gradients of a step are complete, before they are clipped and used."""
        raise NotImplementedError(f"the {self.name} engine shows no gradients")

    def follow(self) -> None:
        """Take an optimizer step without its own batch, with the gradients of other ranks."""
        raise NotImplementedError(f"the {self.name} engine takes no steps together with others")

    @abstractmethod
    def set_schedule(self, schedule: Schedule | None) -> None:
        """Use another schedule from now on; None does not change the learning rates."""

    def present(self) -> None:  # noqa: B027 - most engines rely on nothing
        """Expect changes: call it before code outside of a step runs, such as callbacks."""

    def end_epoch(self) -> None:  # noqa: B027 - most engines learn nothing from it
        """Call this after the last step of an epoch."""

    def decision(self) -> Mapping[str, Any]:
        """Return the decision about the steps, as JSON values for a checkpoint."""
        return {}

    def adopt(self, decision: Mapping[str, Any]) -> None:  # noqa: B027 - only auto decides
        """Use the :meth:`decision` of an earlier run; call it before the first step."""

    def report(self) -> Mapping[str, object]:
        """Return facts about how the steps were computed, as JSON values."""
        return {"engine": self.name}

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """End background work; the values of model and optimizer do not change."""
