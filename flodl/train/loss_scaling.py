"""Counting the steps that a loss scaler skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from flodl import log

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from flodl.train.engines.base import LossScaler


@final
class CountedScaler:
    """Wraps a loss scaler and counts its steps; it behaves like the wrapped one.

    Attributes:
        skipped: Optimizer steps skipped because a gradient was not finite.
        stepped: Whether the latest step was made.
    """

    def __init__(self, scaler: LossScaler) -> None:
        self._scaler = scaler
        self.skipped = 0
        self.stepped = True

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""
        return self._scaler.scale(loss)

    def scale_factor(self) -> float:
        """Return the factor of the loss; 1 if the wrapped scaler does not say it."""
        for name in ("scale_factor", "get_scale"):  # flodl's scaler, torch's scaler
            if (read := getattr(self._scaler, name, None)) is not None:
                return float(read())
        return 1.0

    def step(self, optimizer: torch.optim.Optimizer, clip_norm: float | None = None) -> bool:
        """Unscale, clip and step unless a gradient is not finite; return whether it stepped."""
        self.stepped = self._scaler.step(optimizer, clip_norm=clip_norm)
        self.skipped += not self.stepped
        return self.stepped

    @property
    def grad_norm(self) -> Tensor | None:
        """Norm of the gradients that the latest step clipped; None if it is unknown."""
        return getattr(self._scaler, "grad_norm", None)

    def tell_skipped(self, epoch: int, steps: int) -> None:
        """Print how many of the steps of an epoch were skipped, and count from 0 again."""
        if self.skipped:
            log.msg(
                f"  {self.skipped} of {steps} steps of epoch {epoch + 1} were left out: a gradient "
                "was not finite; the loss scale was lowered"
            )
            self.skipped = 0

    def update(self) -> None:
        """Adjust the scale."""
        self._scaler.update()
