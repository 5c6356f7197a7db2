"""The first half of a step: the user's function, and the check of its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.optim import Optimizer

    from flodl.train.step.base import StepSettings


def forward_function(
    model: nn.Module, settings: StepSettings
) -> Callable[[nn.Module, Any], Tensor]:
    """Return the training function, under autocast if the settings ask for it."""
    train_fn, dtype = settings.train_fn, settings.autocast
    if dtype is None:
        return train_fn
    first = next(model.parameters(), None)
    device_type = first.device.type if first is not None else "cpu"

    def forward(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast(device_type, dtype):
            return train_fn(model, batch)

    return forward


def without_backward(
    forward: Callable[[nn.Module, Any], Tensor], optimizer: Optimizer
) -> Callable[[nn.Module, Any], Tensor]:
    """Return a training function that is refused if it computes the gradients itself.

    A plain backward would fail later, and one that keeps the graph would count twice.
    """

    def checked(model: nn.Module, batch: Any) -> Tensor:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        before = [(p.grad, -1 if p.grad is None else p.grad._version) for p in parameters]
        loss = forward(model, batch)
        for parameter, (grad, version) in zip(parameters, before, strict=True):
            now = parameter.grad
            if now is not None and (now is not grad or now._version != version):
                raise ValueError(
                    "train_fn called backward(): the Trainer does that itself. Return the loss "
                    "and leave out backward(), step() and zero_grad(). To call them yourself, "
                    "write your own loop with Trainer.setup(…)"
                )
        return loss

    return checked


def scalar_loss(loss: object) -> Tensor:
    """Check the result of a training function.

    Returns:
        The loss with shape ``[]``.

    Raises:
        ValueError: It is not a tensor, has several elements, or has no gradient.
    """
    if not isinstance(loss, Tensor):
        raise ValueError(
            f"train_fn returned a {type(loss).__name__}, not a loss tensor; "
            "end it with `return loss` (and without .item())"
        )
    if loss.numel() != 1:
        raise ValueError(
            f"train_fn returned a loss of shape {list(loss.shape)}; a loss is one number: reduce "
            "it, for instance with .mean()"
        )
    if not loss.requires_grad:
        raise ValueError(
            f"train_fn returned a loss of shape {list(loss.shape)} without gradient: it was "
            "detached or computed under no_grad, or every parameter is frozen"
        )
    return loss.reshape(())
