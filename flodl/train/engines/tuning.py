"""What can be changed about a step without changing what it computes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.optim import Optimizer


@final
@dataclass(frozen=True, slots=True)
class Tuning:
    """A way to carry out a step; the default is torch as it comes.

    Attributes:
        fused: One kernel for the optimizer.
        channels_last: Weights of convolutions lie in memory with the channels innermost.
        heap: Freed memory stays with the process.
        route_forward: Matrix products of the forward pass through oneDNN.
        route_backward: Those of the backward pass.
        compiled: Forward and backward through torch.compile.
    """

    fused: bool = False
    channels_last: bool = False
    heap: bool = False
    route_forward: bool = False
    route_backward: bool = False
    compiled: bool = False

    def names(self) -> list[str]:
        """Return what differs from torch as it comes, in words."""
        words = {
            "fused": "fused optimizer",
            "channels_last": "channels last",
            "heap": "kept heap",
            "route_forward": "oneDNN forward",
            "route_backward": "oneDNN backward",
            "compiled": "compiled",
        }
        return [word for field, word in words.items() if getattr(self, field)]

    def __str__(self) -> str:
        return " + ".join(self.names()) or "plain"


def can_be_laid_out(model: nn.Module) -> bool:
    """Whether a model has convolutions over images, whose weights may be laid out otherwise.

    Not where the user has done that, and not where a weight shares its memory with another: they
    would part.
    """
    kinds = (nn.Conv2d, nn.ConvTranspose2d)
    if not any(isinstance(module, kinds) for module in model.modules()):
        return False
    parameters = list(model.parameters())
    homes = Counter(p.untyped_storage().data_ptr() for p in (*parameters, *model.buffers()))
    return all(
        parameter.is_contiguous()
        and homes[parameter.untyped_storage().data_ptr()] == 1
        and parameter.untyped_storage().nbytes() == parameter.nbytes
        for parameter in parameters
        if parameter.dim() == 4
    )


@torch.no_grad()
def lay_out(model: nn.Module, optimizer: Optimizer, memory_format: torch.memory_format) -> None:
    """Lay out the four-dimensional parameters of a model, and what the optimizer knows of them.

    The parameters stay the same objects with the same values.

    Args:
        model: Its parameters of four dimensions are changed.
        optimizer: Its kernels walk through memory and need its tensors laid out alike.
        memory_format: ``torch.channels_last`` or ``torch.contiguous_format``.
    """
    for parameter in model.parameters():
        if parameter.dim() != 4:
            continue
        parameter.data = parameter.data.contiguous(memory_format=memory_format)
        if parameter.grad is not None:
            parameter.grad = parameter.grad.contiguous(memory_format=memory_format)
        state = optimizer.state.get(parameter, {})
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[name] = value.contiguous(memory_format=memory_format)
