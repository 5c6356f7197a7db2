"""How new weights are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Cut:
    """A normal distribution around zero without its ends.

    Attributes:
        std: Standard deviation before cutting.
        bound: The largest absolute value.
    """

    std: float
    bound: float

    def draw(self, values: Tensor, generator: torch.Generator | None) -> None:
        """Fill a tensor of zeros with drawn values."""
        if self.std > 0:
            nn.init.trunc_normal_(
                values, 0.0, self.std, -self.bound, self.bound, generator=generator
            )


def drawn_from(module: M, cut: Cut) -> M:
    """The same module, whose weight is drawn from this distribution when it is new."""
    module.__dict__["initial"] = cut
    return module


def initialise(
    graph: nn.Module, spread: float, device: torch.device | str, seed: int | None = None
) -> None:
    """Draw values for every tensor on the meta device; the same seed gives the same values.

    Weights are drawn from a normal distribution of this deviation, or from that of their module
    (ModernBERT). Biases are zero, the weights of a LayerNorm one, and the row of padding is
    zero. Shared parameters stay shared.
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    made: dict[int, nn.Parameter] = {}
    for module, name, parameter in _parameters(graph):
        if id(parameter) not in made:
            values = fresh(module, name, parameter, spread, generator)
            made[id(parameter)] = nn.Parameter(values.to(device))
    for module, name, parameter in list(_parameters(graph)):
        module._parameters[name] = made[id(parameter)]


def fresh(
    module: nn.Module, name: str, like: Tensor, spread: float, generator: torch.Generator | None
) -> Tensor:
    """Initial values of one parameter, on the CPU.

    Args:
        module: The module with the parameter.
        name: Its name there.
        like: Shape and dtype.
        spread: Standard deviation of weights, if the module has no distribution of its own.
        generator: Draws them.
    """
    values = torch.zeros(like.shape, dtype=like.dtype)
    if isinstance(module, nn.LayerNorm):
        return values.fill_(1.0) if name == "weight" else values
    if name == "weight":
        cut: Cut | None = module.__dict__.get("initial")
        if cut is None:
            values.normal_(0.0, spread, generator=generator)
        else:
            cut.draw(values, generator)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            values[module.padding_idx] = 0.0
    return values


def _parameters(graph: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    for module in graph.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield module, name, parameter
