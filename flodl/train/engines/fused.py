"""Optimizers whose step is one kernel over all parameters.

torch has such kernels for the CPU, too, but uses them only on request. This module does two things:

- It requests the kernel for one step at a time. So the optimizer's settings and its saved state
  stay as the user made them.
- For the Adam family, it calls the kernel with lists that are gathered once. On a small model,
  gathering them costs more than the kernel.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Protocol, final

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class OptimizerStep(Protocol):
    """Updates the parameters and clears their gradients."""

    def __call__(self) -> None:
        """Take one step."""


def fused_step(optimizer: Optimizer) -> OptimizerStep | None:
    """Return a step of this optimizer through torch's fused kernel, or None without one.

    It is also None if the user has chosen an implementation: ``fused``, ``foreach``, ``capturable``
    or ``differentiable``.
    """
    # torch's own schedulers wrap `step` to count; any other replacement does something different.
    replaced = vars(optimizer).get("step")
    if replaced is not None and not hasattr(replaced, "_wrapped_by_lr_sched"):
        return None
    if not runs_torchs_step(optimizer) or not all(map(_free_to_choose, optimizer.param_groups)):
        return None
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    if not tensors or any(not p.is_floating_point() for p in tensors):
        return None
    kinds = {(p.device, p.dtype) for p in tensors}
    if isinstance(optimizer, Adam) and len(kinds) == 1 and tensors[0].device.type == "cpu":
        return _DirectAdam(optimizer)
    return _Asked(optimizer)


def place_step_counts(optimizer: Optimizer, *, fused: bool) -> None:
    """Move the step counts of a state to where the next kind of step needs them.

    A fused kernel reads them on the device of the parameter. The plain step expects them on the
    processor; from a GPU it would read every one of them, and wait for it.
    """
    for parameter, state in optimizer.state.items():
        count = state.get("step")
        if isinstance(count, Tensor):
            state["step"] = count.to(parameter.device if fused else "cpu")


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


def _free_to_choose(group: dict[str, Any]) -> bool:
    chosen = ("fused", "foreach", "capturable", "differentiable")
    return not any(group.get(name) for name in chosen)


@final
class _Asked:
    """Requests the fused kernel during each step."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def __call__(self) -> None:
        optimizer = self._optimizer
        if _has_sparse_gradients(optimizer):
            optimizer.step()
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


def _has_sparse_gradients(optimizer: Optimizer) -> bool:
    """Whether there are sparse gradients; torch has no fused kernel for them."""
    gradients = (p.grad for group in optimizer.param_groups for p in group["params"])
    return any(grad is not None and grad.is_sparse for grad in gradients)


@final
class _Lists:
    """The tensors of one parameter group, in the order of the kernel's arguments."""

    __slots__ = (
        "averages", "group", "kernel", "maxima", "params", "squares", "states", "steps",
    )  # fmt: skip

    def __init__(self, optimizer: Adam, group: dict[str, Any]) -> None:
        self.group = group
        self.params: list[Tensor] = list(group["params"])
        # Kept as dictionaries: in a small step, finding one by its tensor costs more than the rest.
        self.states: list[dict[str, Any]] = [optimizer.state[p] for p in self.params]
        states = self.states
        self.averages: list[Tensor] = [state["exp_avg"] for state in states]
        self.squares: list[Tensor] = [state["exp_avg_sq"] for state in states]
        self.steps: list[Tensor] = [state["step"] for state in states]
        self.maxima: list[Tensor] = (
            [state["max_exp_avg_sq"] for state in states] if group["amsgrad"] else []
        )
        decoupled = group.get("decoupled_weight_decay", isinstance(optimizer, AdamW))
        self.kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_


@final
class _DirectAdam:
    """Calls the kernel of Adam and AdamW on lists that are gathered once."""

    def __init__(self, optimizer: Adam) -> None:
        self._optimizer = optimizer
        self._asked = _Asked(optimizer)
        self._lists: list[_Lists] | None = None
        self._state: object = None
        self._groups = 0

    def __call__(self) -> None:
        optimizer = self._optimizer
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            self._asked()
            return
        if _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
            self._asked()
            return
        lists = self._lists
        if lists is None or not self._current(lists):
            # Makes the state of parameters that have none yet.
            self._asked()
            self._lists = self._gather()
            return
        gradients = [[p.grad for p in group.params] for group in lists]
        for grads in gradients:
            for grad in grads:
                if grad is None:
                    self._asked()
                    return
        self._apply(lists, gradients)

    @torch.no_grad()
    def _apply(self, lists: list[_Lists], gradients: list[list[Any]]) -> None:
        for group, grads in zip(lists, gradients, strict=True):
            settings = group.group
            beta1, beta2 = settings["betas"]
            torch._foreach_add_(group.steps, 1)
            group.kernel(
                group.params,
                grads,
                group.averages,
                group.squares,
                group.maxima,
                group.steps,
                lr=settings["lr"],
                beta1=float(beta1),
                beta2=float(beta2),
                weight_decay=settings["weight_decay"],
                eps=settings["eps"],
                amsgrad=settings["amsgrad"],
                maximize=settings["maximize"],
            )
            for parameter in group.params:
                parameter.grad = None

    def _gather(self) -> list[_Lists] | None:
        optimizer = self._optimizer
        complete = all(
            optimizer.state.get(p) for group in optimizer.param_groups for p in group["params"]
        )
        if not complete:
            return None
        self._state, self._groups = optimizer.state, len(optimizer.param_groups)
        return [_Lists(optimizer, group) for group in optimizer.param_groups if group["params"]]

    def _current(self, lists: list[_Lists]) -> bool:
        """Whether state and parameters are still those that were gathered."""
        optimizer = self._optimizer
        if optimizer.state is not self._state or len(optimizer.param_groups) != self._groups:
            return False
        for group in lists:
            settings = group.group
            if len(group.params) != len(settings["params"]):
                return False
            if bool(group.maxima) != bool(settings["amsgrad"]):
                return False
            for state, average in zip(group.states, group.averages, strict=True):
                if state.get("exp_avg") is not average:
                    return False
        return True
