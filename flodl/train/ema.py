"""A running average of a model's weights, which often evaluates better than the last weights.

The average after update t is ``a_t = d·a_{t-1} + (1 - d)·w_t`` with ``a_1 = w_1`` (averaging after
Polyak and Juditsky, with exponential forgetting). The bits are those that
``torch.optim.swa_utils.AveragedModel`` computes.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, final

import torch

from flodl.checkpoint.sharded import fill, is_sharded, local_part, reshard
from flodl.errors import ShapeMismatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn


@final
class WeightAverage:
    """The exponential moving average of the floating and complex parameters and buffers of a model.

    Other buffers and parameters without a gradient stay as the model has them: integers, sparse
    tensors, and types that torch does not average.

    Args:
        model: The model, on its device. The names and shapes of its tensors must not change during
            the lifetime of this object. A module may replace a buffer by another tensor.
        decay: Weight of the past, in [0, 1): 0.999 looks back over about 1000 steps.

    Raises:
        ValueError: ``decay`` is out of range, or a trained parameter cannot be averaged.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"ema decay={decay!r}: it must be at least 0 and below 1")
        named = dict(chain(model.named_parameters(), model.named_buffers()))
        tensors = {n: t for n, t in named.items() if _is_averaged(t)}
        for name in (n for n, t in named.items() if t.requires_grad and n not in tensors):
            raise ValueError(
                f"ema: the parameter {name} is {named[name].dtype} ({named[name].layout}), which "
                "torch cannot average: leave ema out, or freeze the parameter"
            )
        homes = _homes(model)
        self._decay = float(decay)
        self._model = model
        self._sharded = any(map(is_sharded, tensors.values()))
        self._names = list(tensors)
        self._homes = [homes[name] for name in tensors]
        self._average = [tensor.detach().clone() for tensor in tensors.values()]
        self._updates = 0
        self._applied = False

    @property
    def decay(self) -> float:
        """Weight of the past in every update."""
        return self._decay

    @property
    def updates(self) -> int:
        """Number of steps in the average."""
        return self._updates

    @torch.no_grad()
    def update(self) -> None:
        """Add the weights of the model to the average: call it once after each optimizer step."""
        if self._updates == 0:
            torch._foreach_copy_(self._own(self._average), self._own(self._weights()))
        else:
            average, weights = self._own(self._average), self._own(self._weights())
            torch._foreach_lerp_(average, weights, 1.0 - self._decay)
        self._updates += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the averaged weights into the model inside the context, in place; do not nest."""
        if self._applied:
            raise RuntimeError("applied() inside of applied(): the model has the average already")
        reshard(self._model)
        weights = self._weights()
        kept = [tensor.detach().clone() for tensor in weights]
        self._applied = True
        try:
            with torch.no_grad():
                torch._foreach_copy_(self._own(weights), self._own(self._average))
            yield
        finally:
            reshard(self._model)
            for (holder, key), tensor in zip(self._homes, weights, strict=True):
                holder[key] = tensor
            with torch.no_grad():
                torch._foreach_copy_(self._own(weights), self._own(kept))
            self._applied = False

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"decay", "updates", "tensors": {name: tensor}}``; tensors are not copied."""
        return {
            "decay": self._decay,
            "updates": self._updates,
            "tensors": dict(zip(self._names, self._average, strict=True)),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved average; the decay stays the one given to the constructor.

        Raises:
            ShapeMismatch: The saved average has other tensors; nothing was changed.
        """
        tensors: Mapping[str, Tensor] = state["tensors"]
        shapes = {n: list(t.shape) for n, t in zip(self._names, self._average, strict=True)}
        saved = {name: list(tensor.shape) for name, tensor in tensors.items()}
        if shapes != saved:
            wrong = sorted(n for n in {*shapes, *saved} if shapes.get(n) != saved.get(n))
            raise ShapeMismatch(
                f"the saved weight average does not fit the model at {', '.join(wrong[:3])}"
                f"{' and more' if wrong[3:] else ''}; build the model the way it was built before"
            )
        for name, tensor in zip(self._names, self._average, strict=True):
            fill(tensor, tensors[name])
        self._updates = int(state["updates"])

    def _own(self, tensors: list[Tensor]) -> list[Tensor]:
        """The parts of the tensors in this process: the average is computed element by element."""
        return [local_part(tensor) for tensor in tensors] if self._sharded else tensors

    def _weights(self) -> list[Tensor]:
        return [holder[key] for holder, key in self._homes]


_AVERAGED = {
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
}


def _is_averaged(tensor: Tensor) -> bool:
    return tensor.dtype in _AVERAGED and tensor.layout is torch.strided


def _homes(model: nn.Module) -> dict[str, tuple[dict[str, Any], str]]:
    """Where the modules keep the tensors of these names, since modules may replace tensors."""
    homes: dict[str, tuple[dict[str, Any], str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for holder in (module._parameters, module._buffers):
            homes |= {f"{path}.{key}" if path else key: (holder, key) for key in holder}
    return homes
