"""Exclude parameters from training, and keep the statistics of normalisation layers."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

PINNED = "_statistics_pinned"
"""Attribute of a pinned layer; a plain attribute, so that copies and pickles are pinned too."""


def freeze_params(parameters: Iterable[Tensor]) -> None:
    """Freeze tensors: they are no longer trained, and their gradients are dropped.

    If the gradients stayed, an optimizer with these tensors would still change them: by the last
    gradient, by momentum and by weight decay.
    """
    for parameter in parameters:
        parameter.requires_grad_(False)
        parameter.grad = None


def unfreeze_params(parameters: Iterable[Tensor]) -> None:
    """Train tensors again from the next backward on; integer tensors stay without a gradient."""
    for parameter in parameters:
        if parameter.is_floating_point() or parameter.is_complex():
            parameter.requires_grad_(True)


def pin_statistics(module: nn.Module) -> None:
    """Put normalisation layers with running statistics into evaluation mode until released.

    Args:
        module: Searched together with everything below it.
    """
    for layer in module.modules():
        # By buffer, not by class: this finds BatchNorm, InstanceNorm and similar layers.
        if "running_mean" in layer._buffers:
            setattr(layer, PINNED, True)
            layer.training = False


def release_statistics(module: nn.Module, *, training: bool) -> None:
    """Undo :func:`pin_statistics`.

    Args:
        module: Searched together with everything below it.
        training: The mode of released layers from now on.
    """
    for layer in module.modules():
        if PINNED in layer.__dict__:
            delattr(layer, PINNED)
            layer.training = training


def follow_mode(module: nn.Module) -> None:
    """Put pinned layers back into evaluation mode after a change of mode of the whole model."""
    for layer in module.modules():
        if PINNED in layer.__dict__:
            layer.training = False
