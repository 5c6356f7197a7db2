"""Values in rows of image layers with their channels innermost; nobody else sees them.

Convolutions of the CPU and of tensor cores are faster on such values. A value takes this layout
before a row of torch's own layers in an ``nn.Sequential`` and the usual one after it. So code of
the user meets the usual layout only: weights, gradients, and what the row returns have it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.optim import Optimizer

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)
_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
_LAYERS = (
    *_CONVOLUTIONS,
    *(nn.BatchNorm2d, nn.GroupNorm, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Identity),
)
"""Layers that compute the same in any memory layout, up to rounding. Dropout draws in its order."""


@final
class ChannelsLast:
    """A context in which rows of image layers of a model compute with channels innermost.

    Args:
        model: May be such a row, or contain some.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._changed: list[nn.Sequential] = []

    def __enter__(self) -> None:
        """Let the rows compute in this way."""
        self._changed = rows_of_layers(self._model)
        for one in self._changed:
            vars(one)["forward"] = partial(_forward, one)

    def __exit__(self, *_: object) -> None:
        """Let them compute as usual."""
        for one in self._changed:
            del vars(one)["forward"]


def rows_of_layers(model: nn.Module) -> list[nn.Sequential]:
    """Return the parts of a model that contain a row of image layers."""
    return [
        one
        for one in model.modules()
        if type(one) is nn.Sequential
        and "forward" not in vars(one)
        and any(len(row) > 1 for row in _rows(one))
    ]


def _rows(layers: nn.Sequential) -> Iterator[list[nn.Module]]:
    """Divide layers into rows that begin with a convolution, and single ones."""
    row: list[nn.Module] = []
    for layer in layers:
        if row and type(layer) in _LAYERS:
            row.append(layer)
            continue
        if row:
            yield row
        row = [layer]
        if type(layer) not in _CONVOLUTIONS:
            yield row
            row = []
    if row:
        yield row


def _forward(layers: nn.Sequential, x: Any) -> Any:
    """Compute what ``nn.Sequential`` computes, layer by layer."""
    suits = not _is_watched(layers) and all(p.is_contiguous() for p in layers.parameters())
    for row in _rows(layers):
        inside = suits and len(row) > 1 and type(x) is Tensor and x.dim() == 4 and x.is_contiguous()
        if inside:
            x = x.contiguous(memory_format=torch.channels_last)
        for layer in row:
            x = layer(x)
        if inside:
            x = x.contiguous()
    return x


def _is_watched(layers: nn.Module) -> bool:
    """Whether code of the user could see values between two layers."""
    modes = torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack()
    return bool(modes) or torch.compiler.is_compiling() or has_hooks(layers)


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
