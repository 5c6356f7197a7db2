"""A check that the fused kernel of an optimizer updates parameters as its plain step does.

It uses the gradients of a live step, and one piece of one parameter at a time. So it needs a few
megabytes and runs no code of the user.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW

from flodl.train.engines.fused import place_step_counts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.optim import Optimizer

    from flodl.train.engines.fused import OptimizerStep

_PIECE = 2**18
"""Elements that are compared at a time: with all copies about eight megabytes."""

_VALUES = "its values"

_ULPS = 256
"""Rounding errors by which two orders of the same operations may differ."""


@final
class CheckedStep:
    """A fused step that is compared with the plain step before its first use.

    Args:
        optimizer: The optimizer of the step.
        fused: The step through the fused kernel.

    Attributes:
        fused: The same step; may be replaced by another one of the same optimizer.
        reason: Why the plain step is used instead; empty if the two agree.
    """

    def __init__(self, optimizer: Optimizer, fused: OptimizerStep) -> None:
        self._optimizer = optimizer
        self.fused = fused
        self._checked = False
        self.reason = ""

    def __call__(self) -> None:
        """Take one step and clear the gradients."""
        if not self._checked:
            # Without gradients, as in a step that other ranks left empty, nothing can be compared.
            self._checked = any(True for _ in _with_gradients(self._optimizer))
            self.reason = disagreement_of_fused(self._optimizer)
        if self.reason:
            self._optimizer.step()
            self._optimizer.zero_grad()
        else:
            self.fused()


@torch.no_grad()
def disagreement_of_fused(optimizer: Optimizer) -> str:
    """Update copies of all parameters with their current gradients, plainly and fused.

    The optimizer, its parameters and all random generators do not change.

    Returns:
        Why the fused step must not be used; empty if both give the same results.
    """
    for group, parameter in _with_gradients(optimizer):
        for number in range(0, parameter.numel(), _PIECE):
            piece = slice(number, number + _PIECE)
            plain, fused = (_moved(optimizer, group, parameter, piece, how) for how in (None, True))
            before = parameter.reshape(-1)[piece]
            for name, value in plain.items():
                old = before if name is _VALUES else None
                if difference := _difference(value, fused[name], old):
                    shape = list(parameter.shape)
                    return f"the fused step of a parameter {shape} differs in {name}: {difference}"
    return ""


def _with_gradients(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], Tensor]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and not parameter.grad.is_sparse:
                yield group, parameter


def _moved(
    optimizer: Optimizer,
    group: dict[str, Any],
    parameter: Tensor,
    piece: slice,
    fused: bool | None,
) -> dict[str, Tensor]:
    """Update a copy of a piece of a parameter; return it with its optimizer state."""

    def part(tensor: Tensor) -> Tensor:
        return tensor.detach().reshape(-1)[piece].clone()

    copy = torch.nn.Parameter(part(parameter))
    assert parameter.grad is not None  # noqa: S101 - checked by the caller
    copy.grad = part(parameter.grad)
    state = {
        name: part(value) if value.shape == parameter.shape else value.clone()
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
    kind = next(kind for kind in (AdamW, Adam, SGD) if isinstance(optimizer, kind))
    # Without its constructor, its hooks and its subclass: only torch's own code may run here.
    twin: Any = object.__new__(kind)
    twin.__dict__.update(defaults=optimizer.defaults, _warned_capturable_if_run_uncaptured=True)
    twin.param_groups = [{**group, "params": [copy], "fused": fused}]
    twin.state = defaultdict(dict)
    if state:
        twin.state[copy] = state
        place_step_counts(twin, fused=bool(fused))
    inspect.unwrap(kind.step)(twin)
    moved = {name: v for name, v in twin.state[copy].items() if isinstance(v, Tensor)}
    return {**moved, _VALUES: copy.detach()}


def _difference(plain: Tensor, fused: Tensor, before: Tensor | None) -> str:
    """Describe the difference of two results; empty if it is within rounding.

    Args:
        plain: The result of the plain step.
        fused: The result of the fused step.
        before: For values of a parameter, the values before the step. Then the change must agree,
            up to the rounding of the values themselves.
    """
    if plain.numel() == 0:
        return ""
    epsilon = torch.finfo(plain.dtype).eps if plain.is_floating_point() else 0.0
    apart = _largest(plain.double() - fused.double())
    if before is None:
        scale = _largest(plain)
        allowed = _ULPS * epsilon * scale
    else:
        scale = _largest(plain.double() - before.double())
        allowed = _ULPS * epsilon * scale + 2 * epsilon * _largest(plain)
    # Values that are not finite in both end the training elsewhere, with a better message.
    if apart > allowed or bool((plain.isfinite() != fused.isfinite()).any()):
        return f"{apart:.3g} of {scale:.3g}"
    return ""


def _largest(tensor: Tensor) -> float:
    """Return the largest magnitude among the finite elements."""
    return float(tensor.abs().nan_to_num(0.0, 0.0).amax())
