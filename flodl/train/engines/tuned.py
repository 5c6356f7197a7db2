"""A step with tunings that can be switched between steps."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from flodl.monitor.ledger import Account
from flodl.train.engines import heap
from flodl.train.engines.base import StepEngine, StepSettings
from flodl.train.engines.forward import forward_function, scalar_loss
from flodl.train.engines.fused import fused_step
from flodl.train.engines.routing import OneDnnRoute
from flodl.train.engines.tuning import Tuning, lay_out
from flodl.train.engines.update import Update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import nn

    from flodl.data import Batch
    from flodl.train.losses import LossLog
    from flodl.train.rate import Schedule

    Forward = Callable[[nn.Module, Batch], Tensor]

_FORWARD, _BACKWARD, _OPTIMIZER = Account.FORWARD, Account.BACKWARD, Account.OPTIMIZER


class TunedEngine(StepEngine):
    """Forward, backward, update, each the way :attr:`tuning` says.

    Args:
        model: In training mode, on its device.
        optimizer: Over the parameters of the model.
        settings: How a step goes.
    """

    name: ClassVar[str] = "tuned"

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, settings: StepSettings
    ) -> None:
        self.settings = settings
        self.global_step = 0
        self.tuning = Tuning()
        self.compiled_forward: Forward | None = None
        self._model = model
        self._optimizer = optimizer
        self._plain_forward = forward_function(model, settings)
        self._forward: Forward = self._plain_forward
        self._update = Update(model, optimizer, settings)
        self._lap = settings.ledger.lap if settings.ledger is not None else None
        self._scaler = settings.scaler
        self._route_forward: OneDnnRoute | None = None
        self._route_backward: OneDnnRoute | None = None

    def use(self, tuning: Tuning) -> None:
        """Carry out the next steps this way; between two optimizer steps only.

        Raises:
            ValueError: ``compiled`` without a :attr:`compiled_forward`.
        """
        before, self.tuning = self.tuning, tuning
        if tuning.compiled and self.compiled_forward is None:
            raise ValueError("nothing has been compiled yet")
        compiled = self.compiled_forward if tuning.compiled else None
        self._forward = compiled if compiled is not None else self._plain_forward
        self._route_forward = OneDnnRoute() if tuning.route_forward else None
        self._route_backward = OneDnnRoute() if tuning.route_backward else None
        if tuning.heap != before.heap:
            (heap.keep if tuning.heap else heap.release)()
        moved = tuning.channels_last != before.channels_last
        if moved:
            wanted = torch.channels_last if tuning.channels_last else torch.contiguous_format
            lay_out(self._model, self._optimizer, wanted)
        if moved or tuning.fused != before.fused:
            self._update.step = fused_step(self._optimizer) if tuning.fused else None

    def step(self, batch: Batch, losses: LossLog, *, parts: int = 1, closes: bool = True) -> None:
        """Train on one batch or on a part of one."""
        lap = self._lap
        if self._route_forward is None:
            loss = self._forward(self._model, batch)
        else:
            with _routed(self._route_forward):
                loss = self._forward(self._model, batch)
        if not (isinstance(loss, Tensor) and loss.dim() == 0 and loss.requires_grad):
            loss = scalar_loss(loss)
        losses.add(loss.detach())
        if lap is not None:
            lap(_FORWARD)
        if parts != 1:
            loss = loss / parts
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        if self._route_backward is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            with _routed(self._route_backward):
                loss.backward()  # type: ignore[no-untyped-call]
        if lap is not None:
            lap(_BACKWARD)
        if closes:
            self._update.apply(self.global_step)
            self.global_step += 1
            if lap is not None:
                lap(_OPTIMIZER)

    def follow(self) -> None:
        """Take an optimizer step with gradients of other ranks."""
        self._update.apply(self.global_step)
        self.global_step += 1

    def set_schedule(self, schedule: Schedule | None) -> None:
        """Take the learning rates from another schedule."""
        self._update.set_schedule(schedule)

    def report(self) -> Mapping[str, object]:
        """Tell the tunings in use."""
        return {"engine": self.name, "tuning": self.tuning.names()}

    def close(self) -> None:
        """Give back the heap, and the layout of weights that the rest of the program expects."""
        self.use(replace(self.tuning, heap=False, channels_last=False))


@contextmanager
def _routed(route: OneDnnRoute) -> Iterator[None]:
    route.enter()
    try:
        yield
    finally:
        route.leave()
