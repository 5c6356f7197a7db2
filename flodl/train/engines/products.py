"""The matrix products of a step, as far as its calls show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

_MOST = 6
"""Number of kinds of products that are measured: those with the most work."""

_PAIRS = {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm"}
_ADDED = {"addmm", "baddbmm"}
_WITH_WEIGHTS = {"multi_head_attention_forward", "lstm", "gru", "rnn_tanh", "rnn_relu"}
PRODUCT_CALLS = frozenset({"linear", *_PAIRS, *_ADDED, *_WITH_WEIGHTS})
"""Names of the functions of torch that :meth:`Products.add` accepts."""


@final
class Product(NamedTuple):
    """``[rows, inner] @ [inner, columns]``."""

    rows: int
    inner: int
    columns: int

    @property
    def work(self) -> int:
        """Number of multiplications."""
        return self.rows * self.inner * self.columns


@final
class Products:
    """Collects the float32 products of a forward pass."""

    def __init__(self) -> None:
        self._seen: Counter[Product] = Counter()

    def add(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Record a call.

        Args:
            name: One of :data:`PRODUCT_CALLS`.
            tensors: The tensors among its arguments, in order.
        """
        if not tensors or tensors[0].dtype != torch.float32 or tensors[0].device.type != "cpu":
            return
        if name == "linear":
            self._add_weights(tensors[0], tensors[1:2])
        elif name in _WITH_WEIGHTS:
            self._add_weights(tensors[0], [one for one in tensors[1:] if one.dim() == 2])
        else:
            pair = tensors[1:3] if name in _ADDED else tensors[:2]
            if len(pair) == 2 and min(one.dim() for one in pair) >= 2:
                left, right = pair
                batches = max(left[..., 0, 0].numel(), right[..., 0, 0].numel())
                self._seen[Product(left.shape[-2], left.shape[-1], right.shape[-1])] += batches

    def _add_weights(self, value: Tensor, weights: Iterable[Tensor]) -> None:
        for weight in weights:
            if weight.dim() == 2 and value.dim() and weight.shape[1] == value.shape[-1]:
                columns, inner = weight.shape
                self._seen[Product(value.numel() // max(1, inner), inner, columns)] += 1

    def heaviest(self) -> tuple[Product, ...]:
        """Return the products with the most work, in an order that is the same in every run."""
        worth = [(each.work * count, each) for each, count in self._seen.items() if each.work]
        return tuple(sorted(each for _, each in sorted(worth, reverse=True)[:_MOST]))


def products_of_layers(model: nn.Module, rows: int) -> tuple[Product, ...]:
    """Return the products of the linear layers of a model for inputs with ``rows`` rows."""
    seen = Products()
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.weight.dtype == torch.float32:
            columns, inner = module.weight.shape
            seen._seen[Product(rows, inner, columns)] += 1
    return seen.heaviest()


def tensors_in(args: Iterable[Any], kwargs: Mapping[str, Any] | None) -> list[Tensor]:
    """Return the tensors among the arguments of a call, including those in lists."""
    found: list[Tensor] = []
    for value in (*args, *(kwargs.values() if kwargs else ())):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [one for one in value if isinstance(one, Tensor)]
    return found
