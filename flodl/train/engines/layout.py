"""Weights of convolutions with their channels innermost, and who may notice."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.optim import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    RAdam,
    RMSprop,
)
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

if TYPE_CHECKING:
    from torch.optim import Optimizer

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)
_ELEMENTWISE = (SGD, Adam, AdamW, NAdam, RAdam, RMSprop, Adagrad, Adamax, Adadelta)


def laid_out_weights(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights of 2D convolutions, each once."""
    kinds = (nn.Conv2d, nn.ConvTranspose2d)
    found: list[Any] = [module.weight for module in model.modules() if isinstance(module, kinds)]
    return list({id(weight): weight for weight in found}.values())


def layout_refusal(model: nn.Module, optimizer: Optimizer) -> str:
    """Return why the weights of a model must keep their layout; empty if another one is safe.

    Code of the user that may read weights during a step is a reason: hooks, and optimizers that are
    not known to work element by element.
    """
    weights = laid_out_weights(model)
    if not weights:
        return "the model has no convolutions over images"
    homes = Counter(p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers()))
    for weight in weights:
        if type(weight) is not nn.Parameter or not weight.is_contiguous():
            return "the weights have a layout of their own"
        storage = weight.untyped_storage()
        if homes[storage.data_ptr()] != 1 or storage.nbytes() != weight.nbytes:
            return "a weight shares its memory"
    if has_hooks(model):
        return "the model has hooks"
    if type(optimizer) not in _ELEMENTWISE:
        return f"the step of {type(optimizer).__name__} may depend on the layout"
    return "the optimizer has hooks" if has_step_hooks(optimizer) else ""


def has_hooks(model: nn.Module) -> bool:
    """Whether a module, a parameter or all modules of the process have hooks."""
    if any(getattr(torch_modules, name) for name in _GLOBAL_HOOKS):
        return True
    if any(getattr(module, name) for module in model.modules() for name in _HOOKS):
        return True
    return any(
        parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
        for parameter in model.parameters()
    )


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Whether an optimizer, or all optimizers of the process, have hooks."""
    own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return bool(own or _global_optimizer_pre_hooks or _global_optimizer_post_hooks)


@torch.no_grad()
def lay_out(model: nn.Module, optimizer: Optimizer, memory_format: torch.memory_format) -> None:
    """Set the memory layout of the weights of convolutions, and of their optimizer state.

    The parameters stay the same objects with the same values.

    Args:
        model: The weights of its 2D convolutions are changed.
        optimizer: Its kernels go through memory in order, so its tensors need the same layout.
        memory_format: ``torch.channels_last`` or ``torch.contiguous_format``.
    """
    for weight in laid_out_weights(model):
        if weight.dim() != 4:
            continue
        weight.data = weight.data.contiguous(memory_format=memory_format)
        if weight.grad is not None:
            weight.grad = weight.grad.contiguous(memory_format=memory_format)
        # Not by indexing, which would make a state if the optimizer has none.
        state = optimizer.state.get(weight, {})
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == weight.shape:
                state[name] = value.contiguous(memory_format=memory_format)
