"""How new weights are drawn, where a family does not use one normal distribution for all."""

from __future__ import annotations

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


def initial_of(module: nn.Module) -> Cut | None:
    """The distribution of the weight of a module; None for that of the model."""
    found: Cut | None = module.__dict__.get("initial")
    return found
