"""Steps with a loss scaler: of flodl, of torch, or of the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch

from flodl import log
from flodl.nn.amp import GradScaler
from flodl.nn.clip import limited_norm

if TYPE_CHECKING:
    from torch import Tensor, nn

    from flodl.train.step.base import LossScaler


@final
class CountedScaler:
    """Takes optimizer steps with a loss scaler, as a plain loop does, and counts them.

    Args:
        scaler: A scaler of torch or of flodl, or an object with the methods of
            :class:`~flodl.train.step.base.LossScaler`.
        model: Its gradients are clipped.

    Attributes:
        skipped: Optimizer steps skipped because a gradient was not finite.
        stepped: Whether the latest step was made.
        grad_norm: Norm of the gradients that the latest step clipped; None if it is unknown.
    """

    def __init__(self, scaler: LossScaler | torch.amp.GradScaler, model: nn.Module) -> None:
        self._scaler: Any = scaler
        self._model = model
        self.skipped = 0
        self.stepped = True
        self.grad_norm: Tensor | None = None

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""
        scaled: Tensor = self._scaler.scale(loss)
        return scaled

    def scale_factor(self) -> float:
        """Return the factor of the loss; 1 if the wrapped scaler does not say it."""
        for name in ("scale_factor", "get_scale"):  # flodl's scaler, torch's scaler
            if (read := getattr(self._scaler, name, None)) is not None:
                return float(read())
        return 1.0

    def step(self, optimizer: torch.optim.Optimizer, clip_norm: float | None = None) -> bool:
        """Unscale, clip and step unless a gradient is not finite, then adjust the scale.

        Returns:
            Whether the optimizer stepped.
        """
        self.grad_norm = None
        if isinstance(self._scaler, torch.amp.GradScaler | GradScaler):
            self.stepped = self._plain_step(optimizer, clip_norm)
        else:
            self.stepped = self._scaler.step(optimizer, clip_norm=clip_norm)
            self.grad_norm = getattr(self._scaler, "grad_norm", None)
            self._scaler.update()
        self.skipped += not self.stepped
        return self.stepped

    def _plain_step(self, optimizer: torch.optim.Optimizer, clip_norm: float | None) -> bool:
        """Do what torch's documentation writes for a loop with a scaler and clipping."""
        scaler, norm = self._scaler, None
        before = self.scale_factor()
        if clip_norm is not None:
            scaler.unscale_(optimizer)
            norm = limited_norm(self._model.parameters(), clip_norm)
        scaler.step(optimizer)
        scaler.update()
        # The scale only falls after a step that was left out; torch's scaler tells nothing else.
        stepped = self.scale_factor() >= before
        if stepped:
            self.grad_norm = norm
        return stepped

    def tell_skipped(self, epoch: int, steps: int) -> None:
        """Print how many of the steps of an epoch were skipped, and count from 0 again."""
        if self.skipped:
            log.msg(
                f"  {self.skipped} of {steps} steps of epoch {epoch + 1} were left out: a gradient "
                "was not finite; the loss scale was lowered"
            )
            self.skipped = 0
