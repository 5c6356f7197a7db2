"""Optimizers whose step is one kernel over all parameters.

torch has such kernels for the CPU, too, but uses them only on request. The kernel is requested for
one step at a time, so the optimizer's settings and its saved state stay as the user made them.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, final

from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable

_CHOICES = ("fused", "foreach", "capturable", "differentiable")


def fused_step(optimizer: Optimizer) -> FusedStep | None:
    """Return a step of this optimizer through torch's fused kernel, or None without one.

    It is also None if the user has chosen an implementation: ``fused``, ``foreach``, ``capturable``
    or ``differentiable``.
    """
    if replaces_step(optimizer) or not runs_torchs_step(optimizer):
        return None
    groups = optimizer.param_groups
    if any(group.get(name) for group in groups for name in _CHOICES):
        return None
    tensors = [p for group in groups for p in group["params"]]
    return FusedStep(optimizer) if all(p.is_floating_point() for p in tensors) else None


def replaces_step(optimizer: Optimizer) -> bool:
    """Whether the program has replaced ``step``; torch's schedulers wrap it to count."""
    replaced = vars(optimizer).get("step")
    return replaced is not None and not hasattr(replaced, "_wrapped_by_lr_sched")


def runs_torchs_step(optimizer: Optimizer) -> bool:
    """Whether the step of an optimizer is that of torch's SGD, Adam or AdamW."""
    for kind in (SGD, Adam, AdamW):
        if isinstance(optimizer, kind):
            # torch wraps `step` per class; the wrapped function shows whether a subclass changed
            # it.
            mine: Callable[..., Any] = inspect.unwrap(type(optimizer).step)
            if mine is inspect.unwrap(kind.step):
                return True
    return False


def place_step_counts(optimizer: Optimizer, *, fused: bool) -> None:
    """Move the step counts of a state to where the next kind of step needs them.

    A fused kernel reads them on the device of the parameter. The plain step expects them on the
    processor; from a GPU it would read every one of them, and wait for it.
    """
    for parameter, state in optimizer.state.items():
        count = state.get("step")
        # Asked first: `to` takes longer than this even where it has nothing to do.
        if isinstance(count, Tensor) and count.is_cpu is not (parameter.is_cpu or not fused):
            state["step"] = count.to(parameter.device if fused else "cpu")


def _has_sparse_gradient(optimizer: Optimizer) -> bool:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            grad = parameter.grad
            if grad is not None and grad.is_sparse:
                return True
    return False


@final
class FusedStep:
    """Requests the fused kernel during each step, then clears the gradients."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def __call__(self) -> None:
        """Take one step."""
        optimizer = self._optimizer
        if _has_sparse_gradient(optimizer):
            optimizer.step()  # torch has no fused kernel for sparse gradients
            optimizer.zero_grad()
            return
        place_step_counts(optimizer, fused=True)
        before = [group["fused"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["fused"] = True
        try:
            optimizer.step()
        finally:
            for group, value in zip(optimizer.param_groups, before, strict=True):
                group["fused"] = value
        optimizer.zero_grad()
