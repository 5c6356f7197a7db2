"""What all rewrites share: the proof on live values, and how they are described."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

_TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}
_LOW_PRECISION = 2e-2


class NodeRewrite:
    """Computes a node in another way where that is possible, and calls its module elsewhere.

    It holds no module and no tensor. A copy or a pickle of it proves itself again.

    Attributes:
        what: What it does, for reports.
        same: Number of a node of the same value, or 0.
        wrong: Why it is not used any more: its values were not those of the module.
    """

    what: ClassVar[str]

    def __init__(self) -> None:
        self.same = 0
        self.wrong = ""
        self._proven: set[object] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def refusal(self, module: nn.Module) -> str:
        """Return why a module is called as it is; empty if the rewrite computes it."""
        raise NotImplementedError

    def agrees(self, plain: Callable[[], Sequence[Tensor]], seen: Sequence[Tensor]) -> bool:
        """Compare the first values of a kind with those of the plain modules, without autograd.

        Only layers of torch run again, and only those that draw no random numbers. So the program
        cannot notice it.

        Args:
            plain: Computes the values in the plain way.
            seen: The values of the rewrite.
        """
        kind = tuple((value.dtype, value.shape[1:]) for value in seen)
        if kind in self._proven:
            return True
        with torch.no_grad():
            for one, other in zip(plain(), seen, strict=True):
                if one.shape != other.shape or one.dtype != other.dtype:
                    self.wrong = f"its value is {list(other.shape)} instead of {list(one.shape)}"
                    return False
                scale = one.norm()
                error = float((other - one).norm() / scale.clamp_min(torch.finfo(one.dtype).tiny))
                if not float(scale) < float("inf"):
                    return True  # values that are not finite prove nothing
                if not error <= _TOLERANCES.get(one.dtype, _LOW_PRECISION):
                    self.wrong = f"its value differs by {error:.1e}"
                    return False
        self._proven.add(kind)
        return True
