"""The leaf modules random graphs are made of: small, in float64, and sensitive to mistakes.

References are weighted by their names, so that a value delivered under the wrong name shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from flodl import (
    ArgmaxSelector,
    BatchArgmaxSelector,
    FixedSelector,
    LearnedHalt,
    LoopBody,
    NamedInputModule,
    SigmoidRouter,
    SoftmaxRouter,
    StateAdd,
    ThresholdHalt,
)

from .recipe import Leaf, Recipe

Parts = dict[int, nn.Module | Callable[[Tensor], Tensor]]
"""The instance of every leaf's slot."""


def weigh(refs: Mapping[str, Tensor]) -> Tensor | float:
    """Sum of the references' means over their last dimension, each weighted by its name."""
    total: Tensor | float = 0.0
    for name, value in refs.items():
        total = total + value.mean(-1, keepdim=True) * (0.1 + sum(map(ord, name)) % 7 / 10)
    return total


class Block(nn.Module):
    """Two layers with an inner width, so that swapped blocks differ in shape."""

    def __init__(self, width: int, out: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(x)))


class Scale(nn.Module):
    """A gain, a buffer that is saved, and one that is not."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(width) + 0.5)
        self.register_buffer("offset", torch.rand(width))
        self.register_buffer("unit", torch.ones(width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain + self.offset * self.unit


class Centred(nn.Module):
    """Every row depends on all rows, so that slicing the batch differently shows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) - 0.7 * x.mean(0, keepdim=True)


class Listed(nn.Module):
    """Returns a list led by a tensor."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x: Tensor) -> list[object]:
        return [self.linear(x), "not a tensor"]


class Mix(NamedInputModule):
    """Takes references through its second argument."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward_named(self, x: Tensor, refs: Mapping[str, Tensor]) -> Tensor:
        return torch.tanh(self.linear(x) + weigh(refs))


class Offered(nn.Module):
    """Takes references because it happens to have the method."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)

    def forward_named(self, x: Tensor, refs: Mapping[str, Tensor]) -> Tensor:
        return self.linear(x) * (1 + weigh(refs))


class Emitter(LoopBody):
    """Publishes every state, and, when ``sparse``, the positive ones under a second name."""

    def __init__(self, width: int, slot: int, sparse: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.slot, self.sparse = slot, sparse

    def step(self, x, refs, emit):  # the types are those of LoopBody
        y = torch.tanh(self.linear(x) + weigh(refs)) + 0.5 * x
        emit.publish(f"state_{self.slot}", y)
        if self.sparse and y.mean() > 0:
            emit.publish(f"positive_{self.slot}", 2 * y)
        return y


class Tracer(nn.Module):
    """Remembers its last output, forgets it on ``reset``, and shows it with ``trace``."""

    def __init__(self, width: int, sparse: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.sparse = sparse
        self.memory: Tensor | None = None

    def reset(self) -> None:
        self.memory = None

    def trace(self) -> Tensor | None:
        return None if self.sparse and self.memory.mean() <= 0 else self.memory

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "memory": None}

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x)) + 0.5 * x
        self.memory = y if self.memory is None else y + 0.3 * self.memory
        return self.memory


class PooledRouter(nn.Module):
    """Weights per sample, ``[B, N]``, whatever stands between batch and width."""

    def __init__(self, width: int, choices: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, choices)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.linear(x.mean(1) if x.dim() == 3 else x), -1)


class GlobalRouter(nn.Module):
    """One set of weights for everything, ``[N]``."""

    def __init__(self, width: int, choices: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, choices)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.reshape(-1, x.shape[-1]).mean(0))


class ElementRouter(nn.Module):
    """A weight for every element of every expert, ``[…, D, N]``."""

    def __init__(self, width: int, out: int, choices: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out * choices)
        self.choices = choices

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.linear(x)).unflatten(-1, (-1, self.choices))


class MixedRouter(NamedInputModule):
    """Weights that depend on references."""

    def __init__(self, width: int, choices: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, choices)

    def forward_named(self, x: Tensor, refs: Mapping[str, Tensor]) -> Tensor:
        return torch.softmax(self.linear(x) * (1 + weigh(refs)), -1)


class SignSelector(NamedInputModule):
    """First or last branch by the sign of a mean: of each row, or of the whole batch."""

    def __init__(self, choices: int, batch: bool) -> None:
        super().__init__()
        self.last, self.batch = choices - 1, batch

    def forward_named(self, x: Tensor, refs: Mapping[str, Tensor]) -> Tensor:
        x = x + weigh(refs)
        return ((x.mean() if self.batch else x.flatten(1).mean(1)) > 0) * self.last


class RowHalt(nn.Module):
    """One decision per row: its mean size is below a limit."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        return self.limit - x.abs().mean(-1)


def bend(x: Tensor) -> Tensor:
    """A function that is no module; flat far out, or memories that grow would magnify rounding."""
    return torch.atan(2 * x)


_TABLE: dict[str, Callable[[Leaf], nn.Module | Callable[[Tensor], Tensor]]] = {
    "linear": lambda leaf: nn.Linear(leaf.width, leaf.out),
    "block": lambda leaf: Block(leaf.width, leaf.out, leaf.hidden),
    "scale": lambda leaf: Scale(leaf.width),
    "centred": lambda leaf: Centred(leaf.width),
    "listed": lambda leaf: Listed(leaf.width, leaf.out),
    "lstm": lambda leaf: nn.LSTM(leaf.width, leaf.out, batch_first=True),
    "gru": lambda leaf: nn.GRU(leaf.width, leaf.out, batch_first=True),
    "dropout": lambda leaf: nn.Dropout(leaf.value),
    "function": lambda leaf: bend,  # noqa: ARG005  # every entry takes the leaf
    "mix": lambda leaf: Mix(leaf.width, leaf.out),
    "offered": lambda leaf: Offered(leaf.width, leaf.out),
    "state_add": lambda leaf: StateAdd(),  # noqa: ARG005  # see above
    "emitter": lambda leaf: Emitter(leaf.width, leaf.slot, leaf.value > 0),
    "tracer": lambda leaf: Tracer(leaf.width, leaf.value > 0),
    "softmax": lambda leaf: SoftmaxRouter(leaf.width, leaf.out),
    "sigmoid": lambda leaf: SigmoidRouter(leaf.width, leaf.out),
    "pooled": lambda leaf: PooledRouter(leaf.width, leaf.out),
    "global": lambda leaf: GlobalRouter(leaf.width, leaf.out),
    "element": lambda leaf: ElementRouter(leaf.width, leaf.hidden, leaf.out),
    "mixed": lambda leaf: MixedRouter(leaf.width, leaf.out),
    "argmax": lambda leaf: ArgmaxSelector(leaf.width, leaf.out),
    "batch_argmax": lambda leaf: BatchArgmaxSelector(leaf.width, leaf.out),
    "fixed": lambda leaf: FixedSelector(int(leaf.value)),
    "sign": lambda leaf: SignSelector(leaf.out, leaf.value > 0),
    "threshold": lambda leaf: ThresholdHalt(leaf.value),
    "learned": lambda leaf: LearnedHalt(leaf.width),
    "rows": lambda leaf: RowHalt(leaf.value),
}


def instantiate(recipe: Recipe, seed: int = 0) -> Parts:
    """Make every leaf of a recipe once, in float64, with weights drawn from ``seed``."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        parts: Parts = {}
        for leaf in recipe.modules():
            if isinstance(leaf, Leaf) and leaf.slot not in parts:
                part = _TABLE[leaf.kind](leaf)
                parts[leaf.slot] = part.double() if isinstance(part, nn.Module) else part
        return parts


def shapes(leaf: Leaf) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of everything a leaf would store."""
    part = _TABLE[leaf.kind](leaf)
    stored = part.state_dict() if isinstance(part, nn.Module) else {}
    return [(name, tuple(value.shape)) for name, value in stored.items()]
