"""Training and evaluation mode of the modules of a model."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


def begin_training(model: nn.Module) -> None:
    """Switch a model to training mode that is in eval mode as a whole, as after loading it.

    If the model itself is in training mode, its modules keep the modes that its program gave them.
    """
    if not model.training:
        model.train()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode, then give each module the mode that it had before."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            if module.training != training:
                # Not only the attribute: a module may do more, such as LoRA that merges weights.
                module.train(training)
        for module, training in modes:  # train() of one may have changed others
            module.training = training
