"""Steps of optimizers that evaluate the loss themselves, as LBFGS does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, final

import torch

from flodl.monitor.ledger import Account
from flodl.nn.clip import limited_norm
from flodl.train.step.base import StepEngine, StepSettings
from flodl.train.step.forward import forward_function, scalar_loss, without_backward
from flodl.train.step.update import Update

if TYPE_CHECKING:
    from torch import Tensor, nn

    from flodl.train.step.base import GradientWatch
    from flodl.train.step.learning_rate import Schedule
    from flodl.train.step.losses import LossLog


@final
class ClosureEngine(StepEngine):
    """Gives the optimizer a closure; the optimizer decides how often to call it.

    The loss of a batch is the loss of the first call, with the parameters before the step.
    Gradients are clipped in every call.

    Args:
        model: In training mode, on its device.
        optimizer: Its ``step`` needs a closure.
        settings: The settings of a step; without a scaler.
    """

    name: ClassVar[str] = "eager"

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, settings: StepSettings
    ) -> None:
        self.settings = settings
        self.global_step = 0
        self._model = model
        self._optimizer = optimizer
        self._forward = without_backward(forward_function(model, settings), optimizer)
        self._update = Update(model, optimizer, settings)

    def step(self, batch: Any, losses: LossLog, *, parts: int = 1, closes: bool = True) -> None:
        """Train on one batch; parts of a batch are refused before the training."""
        assert parts == 1 and closes  # noqa: S101, PT018 - see check_closure
        self._update.prepare(self.global_step)
        calls = 0
        norms: list[Tensor] = []

        def closure() -> Tensor:
            nonlocal calls
            self._optimizer.zero_grad()
            loss = scalar_loss(self._forward(self._model, batch))
            if calls == 0:
                losses.add(loss.detach())
            calls += 1
            loss.backward()  # type: ignore[no-untyped-call]
            if self.settings.max_grad_norm is not None:
                norm = limited_norm(self._model.parameters(), self.settings.max_grad_norm)
                norms[:] = norms[:1] or [norm]
            return loss

        self._optimizer.step(closure)  # type: ignore[arg-type]
        if self._update.watch is not None:
            self._update.watch(self.global_step)
        self._optimizer.zero_grad()
        if norms:
            self._update.tell_norm(self.global_step, norms[0])
        self._update.conclude()
        self.global_step += 1
        if self.settings.ledger is not None:
            self.settings.ledger.lap(Account.OPTIMIZER)

    def watch_gradients(self, watch: GradientWatch) -> None:
        """Show the gradients of the last evaluation of a step, clipped, after the step."""
        self._update.watch = watch

    def set_schedule(self, schedule: Schedule | None) -> None:
        """Use another schedule for the learning rates."""
        self._update.set_schedule(schedule)
