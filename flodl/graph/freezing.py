"""Taking parameters out of training, and keeping the statistics of normalisation layers."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

PINNED = "_statistics_pinned"
"""Attribute of a pinned layer; an ordinary one, so that copies and pickles are pinned as well."""


def freeze_params(parameters: Iterable[Tensor]) -> None:
    """Stop training tensors and drop their gradients.

    Without the latter, an optimizer that holds them would go on moving them by the last gradient,
    by momentum and by weight decay.
    """
    for parameter in parameters:
        parameter.requires_grad_(False)
        parameter.grad = None


def unfreeze_params(parameters: Iterable[Tensor]) -> None:
    """Train tensors again, from the next backward on; those of integers have no gradient."""
    for parameter in parameters:
        if parameter.is_floating_point() or parameter.is_complex():
            parameter.requires_grad_(True)


def pin_statistics(module: nn.Module) -> None:
    """Put every normalisation layer that keeps running statistics into evaluation mode, for good.

    Args:
        module: Searched with everything below it.
    """
    for layer in module.modules():
        # By what it keeps, not by class: that of BatchNorm, of InstanceNorm and of lookalikes.
        if "running_mean" in layer._buffers:
            setattr(layer, PINNED, True)
            layer.training = False


def release_statistics(module: nn.Module, *, training: bool) -> None:
    """Undo :func:`pin_statistics`.

    Args:
        module: Searched with everything below it.
        training: The mode released layers are in from now on.
    """
    for layer in module.modules():
        if PINNED in layer.__dict__:
            delattr(layer, PINNED)
            layer.training = training


def follow_mode(module: nn.Module) -> None:
    """Put pinned layers back into evaluation mode after the mode of everything has changed."""
    for layer in module.modules():
        if PINNED in layer.__dict__:
            layer.training = False
