"""A check on copies: does a tuned step compute what the plain one does?"""

from __future__ import annotations

import copy
import math
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

import torch

from flodl.checkpoint.generators import generator_states, set_generator_states
from flodl.checkpoint.sharded import become
from flodl.train.engines.tuned import TunedEngine
from flodl.train.engines.tuning import Tuning
from flodl.train.losses import LossLog
from flodl.train.metrics import RecordedValues, recording_into

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from flodl.train.engines.base import StepSettings
    from flodl.train.engines.tuned import Forward

STEPS = 3
"""Steps of each kind: the second loss shows the first backward, the third shows the optimizer."""

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
_LOW_PRECISION = 2e-2


@final
class _Losses(LossLog):
    """Keeps losses without checking them."""

    def __init__(self) -> None:
        super().__init__(0)
        self.values: list[float] = []

    def add(self, loss: Tensor) -> None:
        self.values.append(float(loss))

    def _arrive(self, *, wait: bool) -> None:
        """Do nothing: every loss is read in ``add``."""


def disagreement(
    model: nn.Module,
    optimizer: Optimizer,
    settings: StepSettings,
    tuning: Tuning,
    batch: Any,
    compiled: Forward | None = None,
) -> str:
    """Train copies for a few steps on one batch, plainly and with a tuning.

    The model, the optimizer and the random generators do not change. Clear the gradients before the
    call, as between two steps.

    Returns:
        Why the tuning must not be used; empty if the losses agree.
    """
    bare = replace(settings, schedule=None, scaler=None, average=None, ledger=None, values=None)
    plain = replace(tuning, heap=False)
    try:
        with _untouched(model) as touched:
            expected = _losses(model, optimizer, bare, Tuning(), batch)
            seen = _losses(model, optimizer, bare, plain, batch, compiled)
    except Exception as error:
        return f"it failed on a copy of the model ({type(error).__name__}: {error})"
    if touched:
        return "train_fn trains another model than the one it is given"
    dtype = settings.autocast or next((p.dtype for p in model.parameters()), torch.float32)
    tolerance = _TOLERANCES.get(dtype, _LOW_PRECISION)
    for step, (one, other) in enumerate(zip(expected, seen, strict=True)):
        if not math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance * 1e-3):
            return f"loss {other:.7g} instead of {one:.7g} in step {step} of a trial on copies"
    return ""


def _losses(
    model: nn.Module,
    optimizer: Optimizer,
    settings: StepSettings,
    tuning: Tuning,
    batch: Any,
    compiled: Forward | None = None,
) -> list[float]:
    twin, mover = copy.deepcopy((model, optimizer))
    engine = TunedEngine(twin, mover, settings)
    engine.compiled_forward = compiled
    engine.use(tuning)
    losses = _Losses()
    with generators_kept(), recording_into(RecordedValues()):
        for _ in range(STEPS):
            engine.step(batch, losses)
    if reason := engine.capture_refusal(tuning):
        raise ValueError(reason)
    engine.close()  # frees a graph
    return losses.values


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the generators of torch, Python and NumPy at the end of the context."""
    states = generator_states()
    try:
        yield
    finally:
        set_generator_states(states)


@contextmanager
def _untouched(model: nn.Module) -> Iterator[list[str]]:
    """Detect and undo changes that a training function makes to a model that it was not given."""
    touched: list[str] = []
    # A parameter outside of the optimizer keeps the gradients of former steps.
    gradients = [
        (name, p, p.grad, None if p.grad is None else p.grad.clone())
        for name, p in model.named_parameters()
    ]
    buffers = [(name, value, value.clone()) for name, value in model.named_buffers()]
    try:
        yield touched
    finally:
        with torch.no_grad():
            for name, parameter, grad, before in gradients:
                if _differs(parameter.grad, before):
                    touched.append(name)
                    if grad is not None and before is not None:
                        grad.copy_(before)
                parameter.grad = grad
            for name, value, before in buffers:
                # Not with version counters: batch normalisation writes without changing them.
                if _differs(value, before):
                    become(value, before)
                    touched.append(name)


def _differs(now: Tensor | None, before: Tensor | None) -> bool:
    if now is None or before is None:
        return now is not before
    if now.shape != before.shape or now.dtype is not before.dtype:
        return True
    # A nan that stays a nan is not a difference.
    return not torch.equal(now, before) and not torch.allclose(now, before, 0, 0, equal_nan=True)
