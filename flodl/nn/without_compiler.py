"""Torch's optimizers without torch's compiler, whose import takes as long as that of torch.

The constructor of torch's optimizers, ``step``, ``zero_grad`` and ``state_dict`` import
``torch._dynamo``, only to tell the compiler what it shall skip. The methods here do the same
without it. In code that is being compiled they call torch's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

O = TypeVar("O", bound=Optimizer)  # noqa: E741 - it stands for an optimizer

_SKIPPED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
"""Methods that the compiler shall skip."""

_STEP_NAMES = {
    "torch", "torch._dynamo", "_dynamo", "graph_break", "cast", "Optimizer", "is_grad_enabled",
    "set_grad_enabled", "defaults",
}  # fmt: skip
"""The names in torch's wrapper of ``step``: with another one, it does something unknown."""


def without_compiler(optimizer: type[O]) -> type[O]:
    """Override these methods of a subclass, as far as this version of torch has them as known."""
    for name in _SKIPPED:
        theirs: Any = getattr(optimizer, name)
        if _file(theirs) == _file(_disable_dynamo):
            setattr(optimizer, name, _outside(theirs, theirs.__wrapped__))
    step: Any = optimizer.step
    if getattr(step, "hooked", False):  # torch wraps it once more for the first object
        step = step.__wrapped__
    if _file(step) == _file(Optimizer.__init__) and {*step.__code__.co_names} <= _STEP_NAMES:
        optimizer.step = _outside(step, _with_gradients(step.__wrapped__))  # type: ignore[method-assign]
    return optimizer


def _file(function: Any) -> str:
    return str(function.__code__.co_filename)


def _outside(theirs: Callable[..., Any], bare: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's own method in code that is being compiled, and the bare one outside of it."""

    @functools.wraps(theirs)
    def method(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return (theirs if torch.compiler.is_compiling() else bare)(self, *args, **kwargs)

    return method


def _with_gradients(step: Callable[..., Any]) -> Callable[..., Any]:
    """Record operations for gradients in a step only if the optimizer was asked to."""

    def method(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step(self, *args, **kwargs)

    return method
