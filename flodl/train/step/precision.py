"""Mixed precision by name, and what it changes in the loss of the first batch."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch

from flodl import log
from flodl.checkpoint.generators import generator_states, set_generator_states
from flodl.checkpoint.sharded import become, is_sharded
from flodl.train.metrics import RecordedValues, recording_into

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from flodl.train.plan import TrainingPlan

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

    Attributes:
        waits: Whether the comparison is still to be made.
    """

    def __init__(self, plan: TrainingPlan, *, begins: bool) -> None:
        self._plan = plan
        precision = plan.precision
        self.waits = begins and precision is not None and precision.compares

    def look(self, model: nn.Module, batch: Any) -> None:
        """Compare, and print the result; call it before the first step."""
        self.waits = False
        precision = self._plan.precision
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
        states = generator_states()
        try:
            twin = copy.deepcopy(model).eval()
            with (
                recording_into(RecordedValues()),
                torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None),
            ):
                return float(self._plan.train_fn(twin, copy.deepcopy(batch)).detach())
        finally:
            set_generator_states(states)
            for buffer, before in buffers:  # train_fn may use a model that it knows by name
                become(buffer, before)
