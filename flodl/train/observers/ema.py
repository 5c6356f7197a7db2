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
from torch import nn

from flodl.checkpoint.sharded import become, local_part, reshard
from flodl.errors import ShapeMismatch
from flodl.train.callbacks import Callback, TrainingRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor


@final
class WeightAverage(Callback):
    """The exponential moving average of the floating and complex parameters and buffers of a model.

    Other buffers and parameters without a gradient stay as the model has them: integers, sparse
    tensors, and types that torch does not average. The average of a tensor that gets another size
    or type begins again with its new value. Elements of a buffer without a finite average, such as
    a minimum that begins at infinity, are those of the model.

    Args:
        model: The model, on its device. The names of its parameters must not change during the
            lifetime of this object. A module may replace, resize or drop a buffer.
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
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._model = model
        self._names = list(tensors)
        self._homes = [homes[name] for name in tensors]
        self._average = [_copied(tensor) for tensor in tensors.values()]
        self._loose = [
            place
            for place, tensor in enumerate(tensors.values())
            if not isinstance(tensor, nn.Parameter)
        ]
        """Places of the tensors that may get another size or type, or be dropped."""
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
        weights = self._weights()
        for place in self._loose:
            if not _alike(self._average[place], weights[place]):
                self._average[place] = _copied(weights[place])
        averages, present = self._pairs(self._average, weights)
        if self._updates == 0:
            torch._foreach_copy_(averages, present)
        else:
            torch._foreach_lerp_(averages, present, 1.0 - self._decay)
        self._updates += 1

    def on_step_end(self, run: TrainingRun) -> None:  # noqa: ARG002
        """Add the weights after an optimizer step that has changed them."""
        self.update()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the averaged weights into the model inside the context, in place; do not nest."""
        if self._applied:
            raise RuntimeError("applied() inside of applied(): the model has the average already")
        reshard(self._model)
        weights = self._weights()
        kept = [_copied(tensor) for tensor in weights]
        self._applied = True
        try:
            with torch.no_grad():
                self._put(weights)
            yield
        finally:
            reshard(self._model)
            for (holder, key), tensor, value in zip(self._homes, weights, kept, strict=True):
                holder[key] = tensor
                if tensor is not None and value is not None:
                    become(tensor, value)
            self._applied = False

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"decay", "updates", "tensors": {name: tensor}}``; tensors are not copied."""
        return {
            "decay": self._decay,
            "updates": self._updates,
            "tensors": {
                name: tensor
                for name, tensor in zip(self._names, self._average, strict=True)
                if tensor is not None
            },
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved average; the decay stays the one given to the constructor.

        Raises:
            ShapeMismatch: The saved average has other tensors; nothing was changed.
        """
        tensors: Mapping[str, Tensor] = state["tensors"]
        loose = {self._names[place] for place in self._loose}
        known = zip(self._names, self._average, strict=True)
        shapes = {n: list(t.shape) for n, t in known if t is not None and n not in loose}
        saved = {name: list(t.shape) for name, t in tensors.items() if name not in loose}
        if shapes != saved:
            wrong = sorted(n for n in {*shapes, *saved} if shapes.get(n) != saved.get(n))
            raise ShapeMismatch(
                f"the saved weight average does not fit the model at {', '.join(wrong[:3])}"
                f"{' and more' if wrong[3:] else ''}; build the model the way it was built before"
            )
        for place, (name, tensor) in enumerate(zip(self._names, self._average, strict=True)):
            value = tensors.get(name)
            if tensor is None or value is None:
                self._average[place] = None if value is None else value.to(self._device, copy=True)
            else:
                become(tensor, value)
        self._updates = int(state["updates"])

    def _pairs(
        self, values: Sequence[Tensor | None], weights: Sequence[Tensor | None]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return values with the weights of their form; of sharded ones the parts in this process.

        The average is computed element by element.
        """
        found = [
            (value, weight)
            for value, weight in zip(values, weights, strict=True)
            if value is not None and weight is not None
        ]
        pairs = [[local_part(one) for one in side] for side in zip(*found, strict=True)]
        return (pairs[0], pairs[1]) if pairs else ([], [])

    def _put(self, weights: Sequence[Tensor | None]) -> None:
        """Write the average into the weights."""
        values = list(self._average)
        for place in self._loose:
            value, weight = values[place], weights[place]
            if not _alike(value, weight):  # changed since the last step: it has no average
                values[place] = None
            elif value is not None and weight is not None:
                values[place] = torch.where(value.isfinite(), value, weight)
        averages, present = self._pairs(values, weights)
        torch._foreach_copy_(present, averages)

    def _weights(self) -> list[Tensor | None]:
        return [holder.get(key) for holder, key in self._homes]


def _copied(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _alike(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether both are missing, or have the same size and type."""
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and one.dtype is other.dtype


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
