"""Mixed precision by name, the steps with a loss scaler, and a look at the first batch."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

import torch

from flodl import log
from flodl.checkpoint.generators import generators_kept
from flodl.checkpoint.sharded import become, is_sharded
from flodl.nn.amp import GradScaler
from flodl.nn.clip import limited_norm
from flodl.train.metrics import RecordedValues, recording_into

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn


class LossScaler(Protocol):
    """The interface of a loss scaler for fp16, see :class:`flodl.GradScaler`."""

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""

    def step(self, optimizer: torch.optim.Optimizer, clip_norm: float | None = None) -> bool:
        """Unscale, clip and step unless a gradient is not finite; return whether it stepped."""

    def update(self) -> None:
        """Adjust the scale."""


@final
class CountedScaler:
    """Takes optimizer steps with a loss scaler, as a plain loop does, and counts them.

    Args:
        scaler: A scaler of torch or of flodl, or an object with the methods of
            :class:`LossScaler`.
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
        self._scaled = False

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""
        self._scaled = True
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
        if not self._scaled:  # a rank without a batch, in a step of all ranks
            self.scale(torch.zeros((), device=next(self._model.parameters()).device))
        self._scaled, self.grad_norm = False, None
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


_NAMES: Mapping[str, tuple[str, torch.dtype | None]] = {
    **dict.fromkeys(("32", "32-true", "fp32", "float32"), ("32-true", None)),
    **dict.fromkeys(("bf16", "bf16-mixed", "bfloat16"), ("bf16-mixed", torch.bfloat16)),
    **dict.fromkeys(("16", "16-mixed", "fp16", "float16"), ("16-mixed", torch.float16)),
}
_WHOLE = {"bf16-true": "bfloat16", "16-true": "float16", "64-true": "float64", "64": "float64"}


@final
@dataclass(frozen=True, slots=True)
class Precision:
    """A precision that the program chose by name.

    Attributes:
        name: Its name in messages: ``32-true``, ``bf16-mixed`` or ``16-mixed``.
        autocast: The dtype of the forward pass; None for that of the weights.
        compares: Whether the first batch is also computed in float32.
    """

    name: str
    autocast: torch.dtype | None
    compares: bool = True

    @classmethod
    def named(cls, name: str, *, compare: bool = True) -> Precision:
        """Return the precision with one of the names that are in use.

        Raises:
            ValueError: There is no such precision, or it needs weights of another type.
        """
        if name in _WHOLE:
            raise ValueError(
                f"precision={name!r} keeps the weights in {_WHOLE[name]}: let the model "
                f"function return model.to(torch.{_WHOLE[name]}) and leave .precision out; "
                "'bf16-mixed' keeps the weights in float32"
            )
        if name not in _NAMES:
            raise ValueError(
                f"precision={name!r}: it must be 'bf16' (bf16-mixed), 'fp16' (16-mixed) or "
                "'32' (32-true)"
            )
        found, autocast = _NAMES[name]
        return cls(found, autocast, compare and autocast is not None)


@final
class FirstBatch:
    """Compares the loss of the first batch with that in float32, and prints both once.

    Both losses are computed by copies of the model in evaluation mode, where no dropout hides the
    difference. Random generators, buffers and recorded scalars stay as they are.

    Args:
        precision: What the settings name; None if they name nothing.
        train_fn: ``(model, batch) -> loss``.
        begins: Whether the training begins with its first batch.

    Attributes:
        waits: Whether the comparison is still to be made.
    """

    def __init__(
        self,
        precision: Precision | None,
        train_fn: Callable[[Any, Any], Tensor],
        *,
        begins: bool,
    ) -> None:
        self._precision, self._train_fn = precision, train_fn
        self.waits = begins and precision is not None and precision.compares

    def look(self, model: nn.Module, batch: Any) -> None:
        """Compare, and print the result; call it before the first step."""
        self.waits = False
        precision = self._precision
        if precision is None or any(map(is_sharded, model.parameters())):
            return
        try:
            exact, short = (self._loss(model, batch, dtype) for dtype in (None, precision.autocast))
        except Exception as error:  # the program's own code, in a call that it did not ask for
            log.msg(
                f"  {precision.name}: not compared with float32, because the first batch cannot be "
                f"computed on a copy of the model ({type(error).__name__}: {error})"
            )
            return
        apart = abs(short - exact) / abs(exact) if exact else abs(short - exact)
        log.msg(
            f"  {precision.name}: loss {short:.6g} of the first batch, {exact:.6g} in float32 "
            f"(relative difference {apart:.1e})"
        )

    def _loss(self, model: nn.Module, batch: Any, dtype: torch.dtype | None) -> float:
        device = next((p.device for p in model.parameters()), torch.device("cpu")).type
        buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        try:
            twin = copy.deepcopy(model).eval()
            with (
                generators_kept(),
                recording_into(RecordedValues()),
                torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None),
            ):
                return float(self._train_fn(twin, copy.deepcopy(batch)).detach())
        finally:
            for buffer, before in buffers:  # train_fn may use a model that it knows by name
                become(buffer, before)
