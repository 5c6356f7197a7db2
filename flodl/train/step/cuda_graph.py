"""A whole training step as a CUDA graph: one launch instead of hundreds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, final

from flodl import log
from flodl.train.step.capturing import refusal
from flodl.train.step.tuned import TunedEngine
from flodl.train.step.tuning import Tuning

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn

    from flodl.train.step.base import StepSettings
    from flodl.train.step.losses import LossLog


@final
class CudaGraphEngine(TunedEngine):
    """Captures forward, backward, clipping and optimizer once and replays them.

    Each batch is copied on the device into the inputs of the capture. The loader brings batches to
    the device in time: it keeps several there and copies on its own stream.

    The first step runs plainly and counts like all others. In it, libraries choose their kernels
    and the optimizer makes its state. A step that cannot be captured and a batch of another shape
    also run plainly; :meth:`report` gives the reason.

    Args:
        model: In training mode, on its device.
        optimizer: Over the parameters of the model.
        settings: The settings of a step.
        device: The device of the model.
    """

    name: ClassVar[str] = "cuda_graph"
    hides_gradients: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: StepSettings,
        *,
        device: torch.device,
    ) -> None:
        super().__init__(model, optimizer, settings)
        self._fallback = ""
        if reason := refusal(model, optimizer, settings, device):
            self._give_up(f"runs eagerly: {reason}", reason)
        else:
            self.use(Tuning(captured=True))

    def step(self, batch: Any, losses: LossLog, *, parts: int = 1, closes: bool = True) -> None:
        """Train on one batch or on a part of one."""
        super().step(batch, losses, parts=parts, closes=closes)
        if self._fallback:
            return
        reason = self.capture_refusal
        if parts != 1 or not closes:
            reason = "a step of several parts is not one graph"
        if reason:
            self._give_up(f"runs eagerly from here on: {reason}", reason)

    def report(self) -> Mapping[str, object]:
        """Report how many steps were replayed, and why others were not."""
        facts = {**super().report(), "replayed_steps": self.replayed_steps}
        return {**facts, "fallback": self._fallback} if self._fallback else facts

    def _give_up(self, what: str, reason: str) -> None:
        self._fallback = reason
        self.use(Tuning())
        log.warning(f'engine="cuda_graph" {what}')
