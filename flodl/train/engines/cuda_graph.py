"""A whole training step as a CUDA graph: one launch instead of hundreds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, final

import torch
from torch import Tensor

from flodl import log
from flodl.monitor.ledger import Account
from flodl.train.engines.capturing import Capture, batch_refusal, on_a_side_stream, refusal
from flodl.train.engines.tuned import TunedEngine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from flodl.train.engines.base import StepSettings
    from flodl.train.losses import LossLog

_WARMUP = 3


@final
class CudaGraphEngine(TunedEngine):
    """Captures forward, backward, clipping and optimizer once and replays them.

    Each batch is copied on the device into the inputs of the capture. The loader brings batches to
    the device in time: it keeps several there and copies on its own stream.

    The first steps run plainly and count like all others. In them, libraries choose their kernels
    and the optimizer makes its state. A step that cannot be captured and a batch of another shape
    also run plainly; :meth:`report` gives the reason.

    Args:
        model: In training mode, on its device.
        optimizer: Over the parameters of the model; made ``capturable``.
        settings: The settings of a step.
        device: The device of the model.
    """

    name: ClassVar[str] = "cuda_graph"

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: StepSettings,
        *,
        device: torch.device,
    ) -> None:
        super().__init__(model, optimizer, settings)
        self._device = device
        self._refusal = refusal(model, optimizer, settings, device)
        self._warm = 0
        self._replays = 0
        self._captured: Capture | None = None
        self._norm: Tensor | None = None
        """The gradient norm of the captured step; each replay overwrites it."""
        if self._refusal:
            log.warning(f'engine="cuda_graph" runs eagerly: {self._refusal}')
        else:
            _make_capturable(optimizer, device)

    def step(self, batch: Any, losses: LossLog, *, parts: int = 1, closes: bool = True) -> None:
        """Train on one batch or on a part of one."""
        if not self._refusal and (parts != 1 or not closes):
            self._give_up("a step of several parts is not one graph")
        if self._refusal:
            super().step(batch, losses, parts=parts, closes=closes)
            return
        if self._warm < _WARMUP:
            self._warm += 1
            self._aside(batch, losses)
            return
        captured = self._captured or self._capture(batch)
        if captured is None or not captured.fits(batch):
            super().step(batch, losses)
            return
        self._update.prepare(self.global_step)
        if self._update.watch is not None:  # the graph clears its gradients itself
            self._update.watch(self.global_step, gradients=False)
        losses.add(captured.replay(batch))
        if self._norm is not None:
            # The next replay overwrites it.
            self._update.tell_norm(self.global_step, self._norm.clone())
        self._update.conclude()
        self.global_step += 1
        self._replays += 1
        if self._lap is not None:
            self._lap(Account.OPTIMIZER)

    def report(self) -> Mapping[str, object]:
        """Report how many steps were replayed, and why others were not."""
        facts = {**super().report(), "replayed_steps": self._replays}
        return {**facts, "fallback": self._refusal} if self._refusal else facts

    def close(self) -> None:
        """Free the capture and its memory."""
        self._captured = None
        super().close()

    def _aside(self, batch: Any, losses: LossLog) -> None:
        """Run a plain step on a side stream, as a later capture requires."""
        with on_a_side_stream(self._device):
            super().step(batch, losses)

    def _capture(self, batch: Any) -> Capture | None:
        """Capture the step, which runs nothing; the parameters do not change."""
        if reason := batch_refusal(batch):
            self._give_up(reason)
            return None
        self._optimizer.zero_grad()
        try:
            self._captured = Capture(batch, self._body)
        except RuntimeError as error:
            self._optimizer.zero_grad()
            torch.cuda.synchronize(self._device)
            self._give_up(f"the step cannot be captured: {str(error).splitlines()[0]}")
        if self._lap is not None:
            self._lap(Account.COMPILE)
        return self._captured

    def _body(self, batch: Any) -> Tensor:
        loss = self._forward(self._model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.settings.max_grad_norm is not None:
            limit = self.settings.max_grad_norm
            self._norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), limit)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach()

    def _give_up(self, reason: str) -> None:
        self._refusal = reason
        log.warning(f'engine="cuda_graph" runs eagerly from here on: {reason}')


def _make_capturable(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
            if not isinstance(group["lr"], Tensor):
                group["lr"] = torch.tensor(float(group["lr"]), device=device)
    for state in optimizer.state.values():
        step = state.get("step")
        if isinstance(step, Tensor):
            state["step"] = step.to(device)
